//! One connection to a server that accepts writes.

use std::io::ErrorKind::ConnectionRefused;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, join3, ready};
use futures_util::stream::{Stream, StreamExt, poll_fn as stream_fn};
use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::backend::Moment;
use leasehold_core::{Error, Result};
use leasehold_net::{Host, race};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;

use tokio_postgres::{AsyncMessage, Client, Config as Settings, NoTls, Notification, Row};

use crate::client::request::Request;
use crate::config::Server;
use crate::error::{Failure, is_of_tls};

/// After this time without a connection to a host, the next host is tried beside it.
const STEP: Duration = Duration::from_millis(300);

type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// A connection, and the task that carries it. After a drop it ends as soon as the requests that
/// were sent are answered.
pub(crate) struct Link {
    pub(crate) client: Client,
    driver: AbortHandle,
    /// It was cut off. Its task hears of that later.
    is_cut: AtomicBool,
    /// The moment of its last use, in nanoseconds.
    used: AtomicU64,
}

impl Link {
    /// Connects to the first host that accepts writes. The limit applies to each step, and the
    /// connection lives in the caller's runtime. A failure is only returned, not reported otherwise.
    pub(crate) async fn open(
        server: &Server,
        limit: Duration,
    ) -> Result<(Link, UnboundedReceiver<Notification>)> {
        let each = server
            .hosts
            .iter()
            .map(|host| Link::open_at(server, host.clone(), limit).boxed());
        let each: Vec<_> = each.collect();
        let opened = race(each, STEP, |_| false).await;
        opened.map_err(|e| e.unwrap_or_else(|| Failure::new(Unavailable, "no host").into()))
    }

    async fn open_at(
        server: &Server,
        host: Host,
        limit: Duration,
    ) -> Result<(Link, UnboundedReceiver<Notification>)> {
        // Errors about TLS name the host already.
        let at = |e: Error| match is_of_tls(&e) {
            true => e,
            false => Error::new(e.kind(), format!("{host}: {e}")),
        };
        let (client, messages) = connect(server, &host, limit).await.map_err(at)?;
        let (sender, notifications) = unbounded_channel();
        // A stream that has failed repeats its error for ever.
        let messages = messages.take_while(|message| ready(message.is_ok()));
        let driver = tokio::spawn(messages.for_each(move |message| {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                // Most connections have no listener.
                let _ = sender.send(notification);
            }
            ready(())
        }));
        let used = AtomicU64::new(Moment::now().as_nanos());
        let link = Link {
            client,
            driver: driver.abort_handle(),
            is_cut: AtomicBool::new(false),
            used,
        };
        if server.hosts.len() > 1 {
            link.check_primary(limit).await.map_err(at)?;
        }
        Ok((link, notifications))
    }

    async fn check_primary(&self, limit: Duration) -> Result<()> {
        let asked = Request::new(&"SELECT pg_catalog.pg_is_in_recovery()".into());
        let rows = self.ask(&asked, limit).await.map_err(Failure::of_a_read)?;
        if rows
            .first()
            .and_then(|row| row.try_get(0).ok())
            .unwrap_or(true)
        {
            return Err(Failure::new(Unavailable, "it is a standby").into());
        }
        Ok(())
    }

    /// Sends a request, and waits for its answer within this limit. A connection that does not
    /// answer in time is closed.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let parameters = request.parameters();
        self.answered(self.client.query_typed(&request.sql, &parameters), limit)
            .await
    }

    /// Sends a request in a transaction of the isolation level that locks need, for sessions with
    /// another default: three statements in one flight. If `BEGIN` fails, the functions detect the
    /// other isolation level, and refuse.
    pub(crate) async fn ask_isolated(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let parameters = request.parameters();
        let all = join3(
            self.client
                .batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.client.query_typed(&request.sql, &parameters),
            self.client.batch_execute("COMMIT"),
        );
        let committed = all.map(|(begun, answer, committed)| {
            begun?;
            let rows = answer?;
            committed.map(|()| rows)
        });
        self.answered(committed, limit).await
    }

    /// Executes statements without parameters, within this limit.
    pub(crate) async fn execute(&self, sql: &str, limit: Duration) -> Result<(), Failure> {
        self.answered(self.client.batch_execute(sql), limit).await
    }

    async fn answered<T>(
        &self,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
        limit: Duration,
    ) -> Result<T, Failure> {
        let answer = timeout(limit, asked).await;
        self.used.store(Moment::now().as_nanos(), Ordering::Relaxed);
        match answer {
            Ok(answer) => answer.map_err(|e| Failure::of_request(&e)),
            Err(_) => {
                self.cut();
                Err(Failure::broken(Ambiguous, "no answer in time"))
            }
        }
    }

    /// Returns whether the connection can still be used.
    pub(crate) fn is_open(&self) -> bool {
        let is_cut = self.is_cut.load(Ordering::Acquire);
        !is_cut && !self.client.is_closed() && !self.driver.is_finished()
    }

    /// The time since the last use.
    pub(crate) fn idle(&self) -> Duration {
        Moment::now().since(Moment::from_nanos(self.used.load(Ordering::Relaxed)))
    }

    /// Closes the socket, also while requests are under way.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.driver.abort();
    }
}

/// The beginning of the error of a lookup, which has no kind of its own.
const NO_HOST: &str = "failed to lookup address information";

/// Connects to this host. Returns the client, and the messages that have to be polled for it.
async fn connect(server: &Server, host: &Host, limit: Duration) -> Result<(Client, Messages)> {
    let late = |what: &str| Error::from(Failure::new(Unavailable, format!("{what} took too long")));
    let silent = || {
        let why = "it takes connections and does not answer: is it stopped, or overloaded, or no PostgreSQL? Behind a pooler, it may be the server";
        Error::from(Failure::new(Unavailable, why))
    };
    let (user, password) = timeout(limit, server.user())
        .await
        .map_err(|_| late("asking for the credentials"))??;
    let tcp = timeout(limit, TcpStream::connect((host.name.as_str(), host.port))).await;
    let tcp = tcp
        .map_err(|_| late("connecting"))?
        .and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp));
    let tcp = tcp.map_err(|e| {
        let why = match e.kind() {
            ConnectionRefused => {
                "nothing listens at this port: is it running there, and is the port right?".into()
            }
            _ if e.to_string().starts_with(NO_HOST) => {
                format!("the host name cannot be looked up: is it written right? ({e})")
            }
            _ => e.to_string(),
        };
        Error::from(Failure::new(Unavailable, why))
    })?;
    let mut settings = Settings::new();
    settings
        .user(user)
        .dbname(&server.database)
        .application_name("leasehold");
    if let Some(password) = password {
        settings.password(password);
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &server.tls {
        settings.ssl_mode(SslMode::Require);
        let connected = timeout(
            limit,
            crate::client::secure::connect(tls, host, tcp, &settings),
        )
        .await;
        let (client, mut connection) = connected.map_err(|_| late("the TLS handshake"))??;
        return Ok((
            client,
            Box::pin(stream_fn(move |context| connection.poll_message(context))),
        ));
    }
    settings.ssl_mode(SslMode::Disable);
    let connected = timeout(limit, settings.connect_raw(tcp, NoTls))
        .await
        .map_err(|_| silent())?;
    let (client, mut connection) =
        connected.map_err(|e| Error::from(Failure::of_connecting(&e)))?;
    Ok((
        client,
        Box::pin(stream_fn(move |context| connection.poll_message(context))),
    ))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Config;

    /// Also before its task has heard of that: whoever waits for a connection is not given this one.
    #[tokio::test]
    async fn a_connection_that_did_not_answer_is_open_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = async {
            let (mut client, _) = listener.accept().await.unwrap();
            assert!(client.read(&mut [0; 1024]).await.unwrap() > 0);
            // It lets everybody in, and answers nothing.
            let welcome = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
            client.write_all(welcome).await.unwrap();
            client
        };
        let config = Config::from_url(&format!("postgres://user:word@{addr}/database")).unwrap();
        let long = Duration::from_secs(10);
        let (opened, _client) = tokio::join!(Link::open(&config.server, long), server);
        let (link, _) = opened.unwrap();
        assert!(link.is_open());
        let asked = Request::new(&"SELECT 1".into());
        let failure = link
            .ask(&asked, Duration::from_millis(1))
            .await
            .unwrap_err();
        assert!(failure.broken && !link.is_open());
    }
}
