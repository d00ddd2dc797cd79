//! The place of the server: its address, or the one that its sentinels tell. They are asked before
//! each connection, and they publish when they put another server in its place.
//!
//! The promise of the store's page is that a client leaves the former master as soon as one sentinel
//! says so, also if that master goes on. Sentinels hear of a failover one after the other, and one
//! that was cut off names the former master, so the first answer would lead back. The epoch of a
//! failover orders what they say: among the answers of a majority, or those that came in time, the
//! one with the greatest epoch counts, and a majority that knows less than this client has heard is
//! not enough. A majority, because a sentinel that does not answer would otherwise cost a time-out in
//! each failover. The server itself has to say, too, that it is a master.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Credentials;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, PushKind, Value, from_redis_value,
    from_redis_value_ref,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{sleep, timeout};

use crate::link::connection::endpoint::Endpoint;
use crate::link::connection::link::{Link, State, Wire};
use crate::link::server::Sentinels;

/// The channel in which sentinels publish that they have put another server in a master's place.
const SWITCHED: &str = "+switch-master";
/// The pause before the client listens to a sentinel again.
const PAUSE: Duration = Duration::from_secs(1);

/// The means to find the server: its address, or its sentinels.
pub(super) struct ServerSource {
    /// The server; with sentinels, a server of this description at any address.
    server: Endpoint,
    sentinels: Option<(String, Vec<Endpoint>)>,
    credentials: Option<Credentials>,
}

/// An address, and the number of the failover that put the server there; 0 without sentinels.
#[derive(Clone, Default)]
pub(super) struct ServerAddress {
    pub(super) address: String,
    epoch: u64,
}

impl ServerAddress {
    /// Returns whether a later failover than this one has put the server elsewhere.
    fn is_before(&self, other: &ServerAddress) -> bool {
        self.epoch < other.epoch && self.address != other.address
    }
}

/// The answer of a sentinel.
struct SentinelAnswer {
    host: String,
    port: u16,
    epoch: u64,
}

impl SentinelAnswer {
    fn at(&self) -> ServerAddress {
        ServerAddress {
            address: format!("{}:{}", self.host, self.port),
            epoch: self.epoch,
        }
    }
}

impl ServerSource {
    pub(super) fn of(
        server: ConnectionInfo,
        sentinels: Option<Sentinels>,
        credentials: Option<Credentials>,
    ) -> Result<ServerSource> {
        let server = Endpoint::new(server, false)?;
        let Some(Sentinels { master, each }) = sentinels else {
            return Ok(ServerSource {
                server,
                sentinels: None,
                credentials,
            });
        };
        let each = each
            .into_iter()
            .map(|info| Endpoint::new(info, true))
            .collect::<Result<Vec<_>>>()?;
        if each.is_empty() || master.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "no sentinel, or no name of a master, is configured",
            ));
        }
        Ok(ServerSource {
            server,
            sentinels: Some((master, each)),
            credentials,
        })
    }

    /// The address for people, or the name by which sentinels know the server.
    pub(super) fn address(&self) -> String {
        self.sentinels
            .as_ref()
            .map_or_else(|| self.server.address(), |(master, _)| master.clone())
    }

    /// Returns whether another server may take the place of this one.
    pub(super) fn moves(&self) -> bool {
        self.sentinels.is_some()
    }
}

impl Link {
    /// Returns the server with its current credentials, and its current place.
    pub(super) async fn locate(&self) -> Result<(Endpoint, ServerAddress)> {
        let ServerSource {
            server, sentinels, ..
        } = &self.home;
        let Some((master, each)) = sentinels else {
            return Ok((
                self.authenticated(server.clone()).await?,
                ServerAddress {
                    address: server.address(),
                    epoch: 0,
                },
            ));
        };
        let known = locked(&self.heard).epoch;
        let said = self.ask_all(master, each, known).await?;
        let at = said.at();
        // The latest answer counts, also if the sentinels have started their epochs anew, unless a
        // sentinel has published more meanwhile.
        {
            let mut heard = locked(&self.heard);
            if heard.epoch <= known {
                heard.clone_from(&at);
            }
        }
        let info = server
            .client
            .get_connection_info()
            .clone()
            .set_addr(ConnectionAddr::Tcp(said.host, said.port));
        Ok((self.authenticated(Endpoint::new(info, false)?).await?, at))
    }

    /// The server with its current credentials.
    async fn authenticated(&self, server: Endpoint) -> Result<Endpoint> {
        let Some(credentials) = &self.home.credentials else {
            return Ok(server);
        };
        let late = |_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the credentials: they were not said in time",
            ))
        };
        let said = timeout(self.timeout, credentials.ask())
            .await
            .unwrap_or_else(late);
        let (user, password) = said.map_err(|e| server.at(&e))?;
        let info = server.client.get_connection_info().clone();
        let settings = info
            .redis_settings()
            .clone()
            .set_username(user)
            .set_password(password);
        Endpoint::new(info.set_redis_settings(settings), false)
    }

    /// Refuses a connection that was made while the sentinels moved the server.
    fn still_there(&self, at: &ServerAddress) -> Result<()> {
        if at.is_before(&locked(&self.heard)) {
            Err(self.left(at))
        } else {
            Ok(())
        }
    }

    /// Asks all sentinels at once. Waits for a majority, and further while none that answered knows
    /// of a failover as late as `known`.
    async fn ask_all(&self, master: &str, each: &[Endpoint], known: u64) -> Result<SentinelAnswer> {
        let mut asked: FuturesUnordered<_> =
            each.iter().map(|peer| self.ask_one(master, peer)).collect();
        let mut newest = None::<SentinelAnswer>;
        let mut answers = 0;
        let mut errors = Vec::new();
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(said) => {
                    answers += 1;
                    newest = newest
                        .into_iter()
                        .chain([said])
                        .max_by_key(|said| said.epoch);
                }
                Err(e) => errors.push(e),
            }
            if answers * 2 > each.len() && newest.as_ref().is_some_and(|said| said.epoch >= known) {
                break;
            }
        }
        newest.ok_or_else(|| self.none_of(master, &errors))
    }

    /// The error that no sentinel told the server's place. At the first connection a mistake is
    /// reported as one; later it may be in the middle of being mended.
    fn none_of(&self, master: &str, errors: &[Error]) -> Error {
        let first = self.made.load(Ordering::Relaxed) <= 1;
        let mistake = errors
            .iter()
            .find(|e| e.kind() != ErrorKind::Unavailable)
            .filter(|_| first);
        let kind = mistake.map_or(ErrorKind::Unavailable, Error::kind);
        let all: Vec<String> = errors.iter().map(Error::to_string).collect();
        Error::new(
            kind,
            format!(
                "no sentinel says where the master {master:?} is ({})",
                all.join("; ")
            ),
        )
    }

    async fn ask_one(&self, master: &str, peer: &Endpoint) -> Result<SentinelAnswer> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        // `open` has a time limit of its own, and its error says more.
        let (mut connection, _) = self.open(peer, config, || ()).await?;
        let late = |_| {
            Err(peer.at(&Error::new(
                ErrorKind::Unavailable,
                "it did not answer in time",
            )))
        };
        timeout(self.timeout, ask(master, peer, &mut connection))
            .await
            .unwrap_or_else(late)
    }

    /// Listens to all sentinels for as long as the link is there.
    pub(super) async fn listen(self: Arc<Self>) {
        let Some((master, each)) = &self.home.sentinels else {
            return;
        };
        join_all(each.iter().map(|peer| self.listen_to(master, peer))).await;
    }

    async fn listen_to(&self, master: &str, peer: &Endpoint) {
        loop {
            // The error of a sentinel that cannot be reached is reported where it is asked.
            let _ = self.listen_once(master, peer).await;
            sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    async fn listen_once(&self, master: &str, peer: &Endpoint) -> Result<()> {
        let (pushed, mut pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(pushed);
        let (mut connection, _) = self.open(peer, config, || ()).await?;
        connection
            .subscribe(SWITCHED)
            .await
            .map_err(|e| peer.explain(&e))?;
        // Messages from before the subscription are missed, so the sentinel is asked at once. After
        // each message it is asked again: its answer has the epoch.
        loop {
            self.moved(&ask(master, peer, &mut connection).await?.at());
            loop {
                match pushes.recv().await.map(|push| push.kind) {
                    Some(PushKind::Message) => break,
                    Some(PushKind::Disconnection) | None => return Ok(()),
                    Some(_) => {}
                }
            }
        }
    }

    /// Notes a sentinel's news that the server is there. A connection to another server is left,
    /// and waiters for a connection try again at once.
    fn moved(&self, there: &ServerAddress) {
        {
            let mut heard = locked(&self.heard);
            if there.epoch <= heard.epoch {
                return;
            }
            heard.clone_from(there);
        }
        if let Ok(wire) = self.wire()
            && wire.at.is_before(there)
        {
            self.fail(wire.nth, self.left(&wire.at));
        }
        self.relocated.notify();
    }

    /// Uses this connection from now on, unless the server was moved while it was made.
    pub(super) fn put(&self, wire: Wire) -> Result<()> {
        // `moved` stores its news first and then looks for a connection. It finds this one, or the
        // check below finds the news.
        let mut state = self.state_mut();
        self.still_there(&wire.at)?;
        if !matches!(*state, State::Closed) {
            let server = wire.server.clone();
            *state = State::Up(Arc::new(wire));
            let before = locked(&self.led_to).replace(server.clone());
            // The first server counts, too: a node of a Cluster may be heard of before it is
            // reached.
            if before.is_none_or(|before| before != server) {
                self.inbox.replaced.notify();
            }
        }
        Ok(())
    }

    fn left(&self, at: &ServerAddress) -> Error {
        let text = format!(
            "{}: the sentinels have put another server in its place",
            at.address
        );
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// Asks one sentinel. Its two answers belong to one instant: during a failover only the address is
/// already that of the server that is being promoted.
async fn ask(
    master: &str,
    peer: &Endpoint,
    connection: &mut MultiplexedConnection,
) -> Result<SentinelAnswer> {
    let mut questions = redis::pipe();
    questions
        .cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master);
    questions.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers = connection
        .send_packed_commands(&questions, 0, 2)
        .await
        .map_err(|e| peer.explain(&e))?;
    let mut answers = answers.into_iter();
    let address = answers
        .next()
        .unwrap_or_default()
        .extract_error()
        .map_err(|e| peer.explain(&e))?;
    let facts = answers.next().unwrap_or_default();
    if address == Value::Nil {
        let what = format!("it knows no master with the name {master:?}");
        return Err(peer.at(&Error::new(ErrorKind::Invalid, what)));
    }
    let facts = facts.extract_error().map_err(|e| peer.explain(&e))?;
    read(address, &facts).ok_or_else(|| {
        peer.at(&Error::new(
            ErrorKind::Internal,
            "it answered what no Sentinel should",
        ))
    })
}

/// Reads a sentinel's two answers.
fn read(address: Value, facts: &Value) -> Option<SentinelAnswer> {
    let (host, port) = from_redis_value::<(String, String)>(address).ok()?;
    let Value::Map(facts) = facts else {
        return None;
    };
    let epoch = facts
        .iter()
        .find(|(fact, _)| text(fact) == "config-epoch")
        .map(|(_, epoch)| text(epoch))?;
    Some(SentinelAnswer {
        host,
        port: port.parse().ok()?,
        epoch: epoch.parse().ok()?,
    })
}

fn text(value: &Value) -> String {
    from_redis_value_ref(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    #[test]
    fn news_is_what_a_later_failover_put_elsewhere() {
        let at = |address: &str, epoch| ServerAddress {
            address: address.to_owned(),
            epoch,
        };
        let here = at("a:1", 3);
        assert!(here.is_before(&at("b:1", 4)));
        for old in [at("b:1", 3), at("b:1", 2), at("a:1", 4)] {
            assert!(!here.is_before(&old));
        }
    }

    #[test]
    fn whatever_a_sentinel_says_it_is_read_or_refused() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let facts = |epoch: &str| Value::Map(vec![(text("config-epoch"), text(epoch))]);
        let address = |port: &str| Value::Array(vec![text("::1"), text(port)]);
        let said = read(address("6379"), &facts("3")).map(|said| (said.at().address, said.epoch));
        assert_eq!(said, Some(("::1:6379".into(), 3)));
        for (port, epoch) in [("x", "3"), ("6379", ""), ("65536", "1"), ("1", "-1")] {
            assert!(
                read(address(port), &facts(epoch)).is_none(),
                "{port} {epoch}"
            );
        }
        fuzz(include_str!("../../../corpus/answers"), |bytes| {
            let Ok(answer) = redis::parse_redis_value(bytes) else {
                return;
            };
            assert!(read(answer.clone(), &Value::Nil).is_none());
            let _ = (
                read(answer.clone(), &facts("3")),
                read(address("1"), &answer),
            );
        });
    }
}
