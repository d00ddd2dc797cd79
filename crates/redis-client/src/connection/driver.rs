//! The task that carries one connection, and when it writes.
//!
//! The client crate would spawn it too. Here it lets the tasks that are ready first add their requests: otherwise it runs right after
//! the first of them, and each request is a system call of its own. A few at a time: else the server has nothing to do while they add
//! theirs, and they while it answers. Meanwhile no other thread can take it over, and one of those tasks may block its thread: so a
//! request that is slow wakes it, wherever that happens.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::future::select_ok;
use futures_util::task::AtomicWaker;
use leasehold_core::support::dial;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::{AbortHandle, yield_now};

/// So many requests are written together, where more are ready.
const TOGETHER: usize = 16;

/// What the requests of a connection and its task know of each other.
pub(super) type UnderWay = Arc<Requests>;

#[derive(Default)]
pub(super) struct Requests {
    /// How many are not answered yet.
    pub(super) count: AtomicUsize,
    /// How many have come since the task last wrote.
    unwritten: AtomicUsize,
    /// The task, while it waits for others.
    pub(super) task: AtomicWaker,
}

impl Requests {
    /// One more, which is about to be added.
    pub(super) fn come(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.unwritten.fetch_add(1, Ordering::Relaxed) + 1 == TOGETHER {
            self.task.wake();
        }
    }
}

/// Connects, and spawns the task. An address that needs more than a socket is left to the client crate.
pub(super) async fn open(
    client: &Client,
    config: AsyncConnectionConfig,
    under_way: UnderWay,
) -> RedisResult<(MultiplexedConnection, Option<AbortHandle>)> {
    let info = client.get_connection_info();
    let stream: Box<dyn AsyncStream + Send + Unpin> = match info.addr() {
        ConnectionAddr::Tcp(host, port) => match dial(host, *port) {
            Some(simulated) => Box::new(simulated?),
            None => Box::new(connect(host, *port, info.tcp_settings()).await?),
        },
        ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
        _ => return Ok((client.get_multiplexed_async_connection_with_config(&config).await?, None)),
    };
    carry(client, stream, config, under_way).await
}

/// The same over a stream that is connected.
pub(super) async fn carry(
    client: &Client,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    config: AsyncConnectionConfig,
    under_way: UnderWay,
) -> RedisResult<(MultiplexedConnection, Option<AbortHandle>)> {
    let settings = client.get_connection_info().redis_settings();
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
    Ok((connection, Some(tokio::spawn(drive(driver, under_way)).abort_handle())))
}

/// To the first of the host's addresses that answers.
pub(super) async fn connect(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?.map(|address| Box::pin(TcpStream::connect(address)));
    let addresses: Vec<_> = addresses.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(addresses).await?;
    stream.set_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
    }
    Ok(stream)
}

async fn drive(driver: impl Future<Output = ()>, under_way: UnderWay) {
    let (mut driver, mut others) = (pin!(driver), pin!(None));
    poll_fn(|cx| {
        // One request that is alone waits for nobody.
        if others.is_none() && under_way.count.load(Ordering::Relaxed) > 1 {
            under_way.task.register(cx.waker());
            others.set(Some(yield_now()));
            if let Some(others) = others.as_mut().as_pin_mut()
                && others.poll(cx).is_pending()
            {
                return Poll::Pending;
            }
        }
        others.set(None);
        under_way.unwritten.store(0, Ordering::Relaxed);
        driver.as_mut().poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// One thread, as in a program that is busy: what runs beside it would write, too.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn many_requests_that_are_ready_are_written_a_few_at_a_time() {
        let (under_way, written) = (UnderWay::default(), Arc::new(Mutex::new(Vec::new())));
        let (add, mut added) = unbounded_channel();
        let writes = written.clone();
        // In the place of the client crate's: it takes what was added, whenever it runs.
        let driver = poll_fn(move |cx| {
            let mut taken = 0;
            let ended = loop {
                match added.poll_recv(cx) {
                    Poll::Ready(Some(())) => taken += 1,
                    Poll::Ready(None) => break Poll::Ready(()),
                    Poll::Pending => break Poll::Pending,
                }
            };
            if taken > 0 {
                writes.lock().unwrap().push(taken);
            }
            ended
        });
        let all = tokio::spawn(async move {
            let task = tokio::spawn(drive(driver, under_way.clone()));
            for _ in 0..64 {
                let (under_way, add) = (under_way.clone(), add.clone());
                tokio::spawn(async move {
                    under_way.come();
                    add.send(()).unwrap();
                });
            }
            drop(add);
            task.await
        });
        all.await.unwrap().unwrap();
        let written = written.lock().unwrap();
        assert_eq!(written.iter().sum::<usize>(), 64);
        assert!(written.len() < 10 && written.iter().all(|n| *n < 2 * TOGETHER), "{written:?}");
    }
}
