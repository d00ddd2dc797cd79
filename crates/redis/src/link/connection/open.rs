//! Opens one connection, and spawns the task that carries it.

use futures_util::future::select_ok;
use leasehold_core::Error;
use leasehold_core::support::dial;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;

use crate::link::connection::first_words::Listening;
use crate::link::error::{NoHello, no_host, of_first_words, refusal_of_hello};

/// A connection that was not opened.
pub(super) struct NotOpened {
    pub(super) why: Error,
    /// The server's refusal of `HELLO`, if that may be the reason.
    pub(super) hello: Option<NoHello>,
}

impl NotOpened {
    /// `explain` turns the client crate's error into one of ours.
    pub(super) fn of(e: &RedisError, explain: impl FnOnce(&RedisError) -> Error) -> NotOpened {
        NotOpened {
            why: explain(e),
            hello: refusal_of_hello(e),
        }
    }
}

impl From<Error> for NotOpened {
    fn from(why: Error) -> NotOpened {
        NotOpened { why, hello: None }
    }
}

impl From<NotOpened> for Error {
    fn from(not_opened: NotOpened) -> Error {
        not_opened.why
    }
}

/// Connects, and spawns the task, which calls `on_end` once the connection has broken. An address
/// that needs more than a socket is left to the client crate, and `on_end` is not called.
pub(super) async fn open(
    client: &Client,
    config: AsyncConnectionConfig,
    on_end: impl FnOnce() + Send + 'static,
) -> RedisResult<(MultiplexedConnection, Option<AbortHandle>)> {
    let info = client.get_connection_info();
    let stream: Box<dyn AsyncStream + Send + Unpin> = match info.addr() {
        ConnectionAddr::Tcp(host, port) => match dial(host, *port) {
            Some(simulated) => Box::new(simulated?),
            None => Box::new(connect(host, *port, info.tcp_settings()).await?),
        },
        ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
        _ => {
            return Ok((
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?,
                None,
            ));
        }
    };
    carry(client, stream, config, on_end).await
}

/// Opens a connection over a connected stream, and spawns its task, which calls `on_end` once the
/// connection has broken.
pub(super) async fn carry(
    client: &Client,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    config: AsyncConnectionConfig,
    on_end: impl FnOnce() + Send + 'static,
) -> RedisResult<(MultiplexedConnection, Option<AbortHandle>)> {
    let settings = client.get_connection_info().redis_settings();
    let (stream, words) = Listening::to(stream);
    let made = MultiplexedConnection::new_with_config(settings, stream, config).await;
    let words = words.end();
    let (connection, driver) = made.map_err(|e| of_first_words(&words, e, settings.protocol()))?;
    let task = tokio::spawn(async {
        driver.await;
        on_end();
    });
    Ok((connection, Some(task.abort_handle())))
}

/// Connects to the first of the host's addresses that answers.
pub(super) async fn connect(
    host: &str,
    port: u16,
    settings: &TcpSettings,
) -> RedisResult<TcpStream> {
    let addresses = lookup_host((host, port))
        .await
        .map_err(|e| no_host(&e.to_string()))?
        .map(|address| Box::pin(TcpStream::connect(address)));
    let addresses: Vec<_> = addresses.collect();
    if addresses.is_empty() {
        return Err(no_host("it has no address"));
    }
    let (stream, _) = select_ok(addresses).await?;
    stream.set_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
    }
    Ok(stream)
}
