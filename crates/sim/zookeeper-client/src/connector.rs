//! Connecting: makes a connection to one server, and a session on it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::support::dial;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use zookeeper_client::{Error, SessionState};

use crate::Result;
use crate::client::Client;
use crate::serve::{Line, Session};
use crate::values::SessionInfo;
use crate::wire::{PASSWORD, PING, Reader, Record, op};

/// The timeout of a session that asks for none.
const TIMEOUT: Duration = Duration::from_secs(6);

impl Client {
    /// Returns a connector.
    #[must_use]
    pub fn connector() -> Connector {
        Connector::default()
    }
}

/// The settings of a connection.
#[derive(Clone, Debug, Default)]
pub struct Connector {
    session: Option<SessionInfo>,
    #[expect(dead_code, reason = "the store reads what this prints")]
    detached: bool,
    session_timeout: Duration,
    connection_timeout: Duration,
}

impl Connector {
    /// Sets the timeout that the session asks for.
    #[must_use]
    pub fn with_session_timeout(self, session_timeout: Duration) -> Connector {
        Connector {
            session_timeout,
            ..self
        }
    }

    /// Sets the time that a server may be silent.
    #[must_use]
    pub fn with_connection_timeout(self, connection_timeout: Duration) -> Connector {
        Connector {
            connection_timeout,
            ..self
        }
    }

    /// Continues this session.
    #[must_use]
    pub fn with_session(self, session: SessionInfo) -> Connector {
        Connector {
            session: Some(session),
            ..self
        }
    }

    /// Ignores credentials, which are not simulated.
    #[must_use]
    pub fn with_auth(self, _scheme: &str, _auth: &[u8]) -> Connector {
        self
    }

    /// Changes nothing: each server is tried once in any case.
    #[must_use]
    pub fn with_fail_eagerly(self) -> Connector {
        self
    }

    /// Changes nothing: sessions that only read are not simulated.
    #[must_use]
    pub fn with_readonly(self, _readonly: bool) -> Connector {
        self
    }

    /// Connects to this server.
    pub async fn connect(self, server: &str) -> Result<Client> {
        let (host, port) = server
            .rsplit_once(':')
            .ok_or(Error::BadArguments(&"no port"))?;
        let port = port.parse().map_err(|_| Error::BadArguments(&"no port"))?;
        let asked = if self.session_timeout.is_zero() {
            TIMEOUT
        } else {
            self.session_timeout
        };
        let silent = pace(self.connection_timeout, asked).0;
        let begun = async {
            let stream = dial(host, port)
                .and_then(std::result::Result::ok)
                .ok_or(Error::NoHosts)?;
            self.begin(Line::new(stream), asked, silent).await
        };
        match timeout(silent * 2, begun).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(Error::SessionExpired)) => Err(Error::SessionExpired),
            // There is no other server to try.
            Ok(Err(_)) | Err(_) => Err(Error::NoHosts),
        }
    }

    /// Begins the session, and waits for the answer to a first ping.
    async fn begin(&self, mut line: Line, asked: Duration, silent: Duration) -> Result<Client> {
        let (id, password) = self
            .session
            .as_ref()
            .map_or((0, vec![0; PASSWORD]), |session| {
                (session.id, session.password.clone())
            });
        let millis = i32::try_from(asked.as_millis()).unwrap_or(i32::MAX);
        let record = Record::default()
            .int(0)
            .long(0)
            .int(millis)
            .long(id)
            .bytes(&password)
            .bool(false);
        line.send(&record.packet()).await?;
        let packet = timeout(silent, line.next())
            .await
            .map_err(|_| Error::ConnectionLoss)??;
        let mut reader = Reader(&packet);
        let said = (reader.int(), reader.int(), reader.long(), reader.bytes());
        let (Some(_), Some(millis), Some(id), Some(password)) = said else {
            return Err(Error::ConnectionLoss);
        };
        if id == 0 {
            return Err(Error::SessionExpired);
        }
        line.send(&Record::default().int(PING).int(op::PING).packet())
            .await?;
        timeout(silent, line.next())
            .await
            .map_err(|_| Error::ConnectionLoss)??;
        let session_timeout = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
        let (silent, pings) = pace(self.connection_timeout, session_timeout);
        let (requests, asked) = mpsc::unbounded_channel();
        let (state, states) = watch::channel(SessionState::SyncConnected);
        let session = Session::new(line, state, requests.downgrade(), (silent, pings));
        spawns_core::spawn(session.serve(asked));
        let info = SessionInfo {
            id,
            password: password.to_vec(),
        };
        Ok(Client {
            session: info,
            timeout: session_timeout,
            requests: Arc::new(requests),
            states,
        })
    }
}

/// The time that a server may be silent, and the time without a request after which it is pinged.
/// Both are as in that crate.
fn pace(connection: Duration, session: Duration) -> (Duration, Duration) {
    let tick = if connection.is_zero() || connection > session * 3 / 5 {
        session / 20
    } else {
        connection / 8
    };
    let tick = tick.max(Duration::from_millis(1));
    (tick * 8, Duration::from_secs(10).min(tick * 3))
}
