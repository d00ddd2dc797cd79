//! One connection to the server that may write.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{FutureExt, join, ready};
use futures_util::stream::{Stream, StreamExt, poll_fn as stream_fn};
use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::seam::Moment;
use leasehold_core::support::{Host, locked, race};
use leasehold_core::{Error, Result};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;

use tokio_postgres::{AsyncMessage, Client, Config as Settings, NoTls, Notification, Row, Statement};

use crate::client::request::Request;
use crate::config::Server;
use crate::error::Failure;

/// A host that is not connected to for so long is not waited for any further while another was not asked.
const STEP: Duration = Duration::from_millis(300);

type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// A connection, and the task that carries it. Dropped, it ends once what was sent is answered.
pub(crate) struct Link {
    pub(crate) client: Client,
    driver: AbortHandle,
    /// When it was last used, in nanoseconds.
    used: AtomicU64,
    /// The frequent statements that were sent here, and prepared if that was more than once.
    sent: Mutex<HashMap<Arc<str>, Option<Statement>>>,
}

impl Link {
    /// Connects to the first host that may write, within this time for each step, and on this runtime. Nothing is said if it fails but why.
    pub(crate) async fn open(
        server: &Server,
        limit: Duration,
        runtime: &Handle,
    ) -> Result<(Link, UnboundedReceiver<Notification>)> {
        let each = server.hosts.iter().map(|host| Link::open_at(server, host.clone(), limit, runtime).boxed());
        let each: Vec<_> = each.collect();
        let opened = race(each, STEP, |_| false).await;
        opened.map_err(|e| e.unwrap_or_else(|| Failure::new(Unavailable, "no host").into()))
    }

    async fn open_at(
        server: &Server,
        host: Host,
        limit: Duration,
        runtime: &Handle,
    ) -> Result<(Link, UnboundedReceiver<Notification>)> {
        let at = |e: Error| Error::new(e.kind(), format!("{host}: {e}"));
        let (client, messages) = connect(server, &host, limit).await.map_err(at)?;
        let (sender, notifications) = unbounded_channel();
        // What has failed says so for ever.
        let messages = messages.take_while(|message| ready(message.is_ok()));
        let driver = runtime.spawn(messages.for_each(move |message| {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                // Nobody listens on most connections.
                let _ = sender.send(notification);
            }
            ready(())
        }));
        let used = AtomicU64::new(Moment::now().as_nanos());
        let link = Link { client, driver: driver.abort_handle(), used, sent: Mutex::default() };
        if server.hosts.len() > 1 {
            link.check_primary(limit).await.map_err(at)?;
        }
        Ok((link, notifications))
    }

    async fn check_primary(&self, limit: Duration) -> Result<()> {
        let asked = Request::new(&"SELECT pg_is_in_recovery()".into());
        let rows = self.ask(&asked, limit).await.map_err(Failure::of_a_read)?;
        if rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(true) {
            return Err(Failure::new(Unavailable, "it is a standby").into());
        }
        Ok(())
    }

    /// Sends a request, and waits for its answer no longer than this. A connection that did not answer in time is at its end.
    pub(crate) async fn ask(&self, request: &Request, limit: Duration) -> Result<Vec<Row>, Failure> {
        let parameters = request.parameters();
        self.answered(self.client.query_typed(&request.sql, &parameters), limit).await
    }

    /// The same on a connection that is one with the server: what is frequent is prepared when it is sent for the second time, in the same
    /// flight.
    pub(crate) async fn ask_again(&self, request: &Request, limit: Duration) -> Result<Vec<Row>, Failure> {
        let known = locked(&self.sent).get(&request.sql).cloned();
        match known {
            Some(Some(statement)) => {
                let values = request.values();
                self.answered(self.client.query(&statement, &values), limit).await
            }
            Some(None) => {
                let (parameters, types) = (request.parameters(), request.types());
                let asked = self.client.query_typed(&request.sql, &parameters);
                let both = join(asked, self.client.prepare_typed(&request.sql, &types)).map(|(answer, statement)| {
                    if let Ok(statement) = statement {
                        locked(&self.sent).insert(request.sql.clone(), Some(statement));
                    }
                    answer
                });
                self.answered(both, limit).await
            }
            None => {
                locked(&self.sent).insert(request.sql.clone(), None);
                self.ask(request, limit).await
            }
        }
    }

    async fn answered(
        &self,
        asked: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
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

    /// Whether it can still be used.
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.driver.is_finished()
    }

    /// For how long it has not been used.
    pub(crate) fn idle(&self) -> Duration {
        Moment::now().since(Moment::from_nanos(self.used.load(Ordering::Relaxed)))
    }

    /// Closes the socket, whatever is under way.
    pub(crate) fn cut(&self) {
        self.driver.abort();
    }
}

/// One connection to this host: its client, and what has to be polled for it.
async fn connect(server: &Server, host: &Host, limit: Duration) -> Result<(Client, Messages)> {
    let late = |what: &str| Error::from(Failure::new(Unavailable, format!("{what} took too long")));
    let (user, password) = timeout(limit, server.user()).await.map_err(|_| late("asking for the credentials"))??;
    let tcp = timeout(limit, TcpStream::connect((host.name.as_str(), host.port))).await;
    let tcp = tcp.map_err(|_| late("connecting"))?.and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp));
    let tcp = tcp.map_err(|e| Error::from(Failure::new(Unavailable, e.to_string())))?;
    let mut settings = Settings::new();
    settings.user(user).dbname(&server.database).application_name("leasehold");
    if let Some(password) = password {
        settings.password(password);
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &server.tls {
        settings.ssl_mode(SslMode::Require);
        let connected = timeout(limit, crate::client::secure::connect(tls, host, tcp, &settings)).await;
        let (client, mut connection) = connected.map_err(|_| late("the TLS handshake"))??;
        return Ok((client, Box::pin(stream_fn(move |context| connection.poll_message(context)))));
    }
    settings.ssl_mode(SslMode::Disable);
    let connected = timeout(limit, settings.connect_raw(tcp, NoTls)).await.map_err(|_| late("logging in"))?;
    let (client, mut connection) = connected.map_err(|e| Error::from(Failure::of_connecting(&e)))?;
    Ok((client, Box::pin(stream_fn(move |context| connection.poll_message(context)))))
}
