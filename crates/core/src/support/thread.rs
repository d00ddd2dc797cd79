//! A thread of its own for a store's client and its keeper: for programs whose runtime may block.
//!
//! A program that computes for seconds inside of async functions blocks its runtime, and with it
//! the renewals. A thread with a runtime of its own is the answer that needs no discipline of the
//! program: [`Store::on_own_thread`](crate::Store::on_own_thread) for async code, and
//! [`blocking`](crate::blocking) for code without async.

use std::future::Future;

use tokio::runtime::{Builder, Handle};
use tokio::select;
use tokio::sync::oneshot::{self, error::RecvError};

use crate::backend::error::{Error, ErrorKind, Result};

/// The thread lives until this is dropped and the future given to [`OwnThread::outlive`] is done.
pub(crate) struct OwnThread {
    pub(crate) handle: Handle,
    /// Sends the last future to wait for. If it is dropped unsent, there is none.
    end: Option<End>,
}

type Last = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
type End = oneshot::Sender<Last>;
type Made<T> = Result<(Handle, T)>;
type Making<T> = oneshot::Receiver<Made<T>>;

impl OwnThread {
    /// Starts a thread with a runtime of its own and makes a value there.
    pub(crate) async fn start<T: Send + 'static>(
        make: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(OwnThread, T)> {
        let (end, made) = OwnThread::spawn(make)?;
        OwnThread::made(end, made.await)
    }

    /// Starts a thread with a runtime of its own and makes a value there, for a caller without
    /// async. It panics inside of a runtime.
    pub(crate) fn start_and_wait<T: Send + 'static>(
        make: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(OwnThread, T)> {
        let (end, made) = OwnThread::spawn(make)?;
        OwnThread::made(end, made.blocking_recv())
    }

    fn spawn<T: Send + 'static>(
        make: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<(End, Making<T>)> {
        let (mut made_here, made) = oneshot::channel();
        let (end, ended) = oneshot::channel::<Last>();
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "no thread for the store").with_source(e)
        };
        let run = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(e) => return drop(made_here.send(Err(failed(e)))),
            };
            runtime.block_on(async move {
                let made = select! {
                    biased;
                    made = make => made.map(|made| (Handle::current(), made)),
                    // Nobody waits for it any more.
                    () = made_here.closed() => return,
                };
                if made_here.send(made).is_ok()
                    && let Ok(last) = ended.await
                {
                    last.await;
                }
            });
        };
        std::thread::Builder::new()
            .name("leasehold".into())
            .spawn(run)
            .map_err(failed)?;
        Ok((end, made))
    }

    fn made<T>(end: End, made: Result<Made<T>, RecvError>) -> Result<(OwnThread, T)> {
        let panicked = |_| {
            Err(Error::new(
                ErrorKind::Internal,
                "the store's thread ended while it was made",
            ))
        };
        let (handle, made) = made.unwrap_or_else(panicked)?;
        Ok((
            OwnThread {
                handle,
                end: Some(end),
            },
            made,
        ))
    }

    /// Ends the thread, after `last`.
    pub(crate) fn outlive(&mut self, last: impl Future<Output = ()> + Send + 'static) {
        if let Some(end) = self.end.take() {
            // Fails only if the thread has ended already.
            let _ = end.send(Box::pin(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A client that waits for its server may never be made.
    #[tokio::test]
    async fn what_nobody_waits_for_is_not_made() {
        let (alive, ended) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let making = OwnThread::start(async move {
            let _alive = alive;
            begins.send(()).unwrap();
            pending::<Result<()>>().await
        });
        select! {
            _ = making => unreachable!("it is never made"),
            begun = begun => begun.unwrap(),
        }
        let dropped = timeout(Duration::from_secs(60), ended).await.unwrap();
        assert!(dropped.is_err(), "nothing is sent");
    }
}
