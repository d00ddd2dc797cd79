//! The thread that owns a client's connection, and the way to it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use leasehold_core::seam::Notifier;
use leasehold_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use crate::client::worker::{Client, Job};

/// The way to a client's thread, which ends when this is dropped.
pub(crate) struct Handle {
    jobs: mpsc::Sender<Job>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    /// Starts the thread, which opens the file.
    pub(crate) async fn start(path: PathBuf, notifier: Notifier) -> Result<Handle> {
        let short = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "no thread or no descriptor is left for the store").with_source(e)
        };
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| short(e.into()))?;
        let wake = Arc::new(wake);
        let (jobs, asked) = mpsc::channel();
        let (opened_here, opened) = oneshot::channel();
        // Dropped unfinished, it ends the thread as well.
        let (woken, handle) = (wake.clone(), Handle { jobs, wake });
        let run = move || match Client::open(&path, notifier) {
            Ok(client) => {
                if opened_here.send(Ok(())).is_ok() {
                    client.run(&asked, &woken);
                }
            }
            Err(e) => drop(opened_here.send(Err(e))),
        };
        std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(run).map_err(short)?;
        opened.await.unwrap_or_else(|_| Err(Error::closed()))?;
        Ok(handle)
    }

    /// Has `work` done on the thread, in the order of asking. It is done also if the answer is no longer waited for.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer_here, answer) = oneshot::channel();
        self.send(move |client| drop(answer_here.send(work(client))));
        answer.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    /// Has `work` done, and does not wait.
    pub(crate) fn send(&self, work: impl FnOnce(&mut Client) + Send + 'static) {
        // It is lost if the store was closed.
        let _ = self.jobs.send(Box::new(work));
        // A full counter means that the thread was woken already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.send(|client| drop(client.leave()));
    }
}
