//! Where the server is: at its address, or where its sentinels say. They are asked before each connection, and heard when they
//! put another server in its place.
//!
//! A sentinel that was cut off names the master of before, so the first answer is not good enough: of the answers of a majority the
//! one with the greatest epoch counts, or of those that came in time. Sentinels hear of a failover one after the other: so a majority
//! that knows less than this client has heard is not enough, and all are waited for. And the server has to say itself that it is a
//! master.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use leasehold_core::support::{Credentials, locked};
use leasehold_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, PushKind, Value, from_redis_value, from_redis_value_ref,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{sleep, timeout};

use crate::connection::driver::UnderWay;
use crate::connection::link::{Link, State, Wire};
use crate::connection::peer::Peer;
use crate::server::Sentinels;

/// Where sentinels publish that they have put another server in a master's place.
const SWITCHED: &str = "+switch-master";
/// The pause before a sentinel is listened to again.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the server is said to be.
pub(super) struct Home {
    /// The server, or one like it at any address.
    server: Peer,
    sentinels: Option<(String, Vec<Peer>)>,
    credentials: Option<Credentials>,
}

/// An address, and the number of the failover that put the server there; 0 where there are no sentinels.
#[derive(Clone, Default)]
pub(super) struct At {
    pub(super) address: String,
    epoch: u64,
}

impl At {
    /// Whether a later failover than this one has put the server elsewhere.
    fn is_before(&self, other: &At) -> bool {
        self.epoch < other.epoch && self.address != other.address
    }
}

/// What a sentinel says.
struct Said {
    host: String,
    port: u16,
    epoch: u64,
}

impl Said {
    fn at(&self) -> At {
        At { address: format!("{}:{}", self.host, self.port), epoch: self.epoch }
    }
}

impl Home {
    pub(super) fn of(
        server: ConnectionInfo,
        sentinels: Option<Sentinels>,
        credentials: Option<Credentials>,
    ) -> Result<Home> {
        let server = Peer::new(server, false)?;
        let Some(Sentinels { master, each }) = sentinels else {
            return Ok(Home { server, sentinels: None, credentials });
        };
        let each = each.into_iter().map(|info| Peer::new(info, true)).collect::<Result<Vec<_>>>()?;
        if each.is_empty() || master.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no sentinel, or no name of a master, is configured"));
        }
        Ok(Home { server, sentinels: Some((master, each)), credentials })
    }

    /// The address for people, or the name by which sentinels know the server.
    pub(super) fn address(&self) -> String {
        self.sentinels.as_ref().map_or_else(|| self.server.address(), |(master, _)| master.clone())
    }

    /// Whether another server may come into the place of this one.
    pub(super) fn moves(&self) -> bool {
        self.sentinels.is_some()
    }
}

impl Link {
    /// Where the server is now, and how it is reached.
    pub(super) async fn locate(&self) -> Result<(Peer, At)> {
        let Home { server, sentinels, .. } = &self.home;
        let Some((master, each)) = sentinels else {
            return Ok((self.authenticated(server.clone()).await?, At { address: server.address(), epoch: 0 }));
        };
        let known = locked(&self.heard).epoch;
        let said = self.ask_all(master, each, known).await?;
        let at = said.at();
        // What they say now counts, also if they have begun anew; but not if one has said more meanwhile.
        {
            let mut heard = locked(&self.heard);
            if heard.epoch <= known {
                heard.clone_from(&at);
            }
        }
        let info = server.client.get_connection_info().clone().set_addr(ConnectionAddr::Tcp(said.host, said.port));
        Ok((self.authenticated(Peer::new(info, false)?).await?, at))
    }

    /// The server with its credentials as they are now.
    async fn authenticated(&self, server: Peer) -> Result<Peer> {
        let Some(credentials) = &self.home.credentials else { return Ok(server) };
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "the credentials: they were not said in time"));
        let said = timeout(self.timeout, credentials.ask()).await.unwrap_or_else(late);
        let (user, password) = said.map_err(|e| server.at(&e))?;
        let info = server.client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_username(user).set_password(password);
        Peer::new(info.set_redis_settings(settings), false)
    }

    /// Refuses a connection that was made while the sentinels moved the server.
    fn still_there(&self, at: &At) -> Result<()> {
        if at.is_before(&locked(&self.heard)) { Err(self.left(at)) } else { Ok(()) }
    }

    /// Asks all sentinels at once, and waits for most of them, or for all while they know of no failover as late as this one.
    async fn ask_all(&self, master: &str, each: &[Peer], known: u64) -> Result<Said> {
        let mut asked: FuturesUnordered<_> = each.iter().map(|peer| self.ask_one(master, peer)).collect();
        let (mut newest, mut answers, mut errors) = (None::<Said>, 0, Vec::new());
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(said) => {
                    answers += 1;
                    newest = newest.into_iter().chain([said]).max_by_key(|said| said.epoch);
                }
                Err(e) => errors.push(e),
            }
            if answers * 2 > each.len() && newest.as_ref().is_some_and(|said| said.epoch >= known) {
                break;
            }
        }
        newest.ok_or_else(|| self.none_of(master, &errors))
    }

    /// No sentinel said where the server is. A mistake is one at the first connection; later it may be in the middle of being mended.
    fn none_of(&self, master: &str, errors: &[Error]) -> Error {
        let first = self.made.load(Ordering::Relaxed) <= 1;
        let mistake = errors.iter().find(|e| e.kind() != ErrorKind::Unavailable).filter(|_| first);
        let kind = mistake.map_or(ErrorKind::Unavailable, Error::kind);
        let all: Vec<String> = errors.iter().map(Error::to_string).collect();
        Error::new(kind, format!("no sentinel says where the master {master:?} is ({})", all.join("; ")))
    }

    async fn ask_one(&self, master: &str, peer: &Peer) -> Result<Said> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        // That has a limit of its own, and says more when it is over.
        let (mut connection, _) = self.open(peer, config, UnderWay::default()).await?;
        let late = |_| Err(peer.at(&Error::new(ErrorKind::Unavailable, "it did not answer in time")));
        timeout(self.timeout, ask(master, peer, &mut connection)).await.unwrap_or_else(late)
    }

    /// Listens to all sentinels for as long as the link is there.
    pub(super) async fn listen(self: Arc<Self>) {
        let Some((master, each)) = &self.home.sentinels else { return };
        join_all(each.iter().map(|peer| self.listen_to(master, peer))).await;
    }

    async fn listen_to(&self, master: &str, peer: &Peer) {
        loop {
            // Why one cannot be reached is said where it is asked.
            let _ = self.listen_once(master, peer).await;
            sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    async fn listen_once(&self, master: &str, peer: &Peer) -> Result<()> {
        let (pushed, mut pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timeout)).set_push_sender(pushed);
        let (mut connection, _) = self.open(peer, config, UnderWay::default()).await?;
        connection.subscribe(SWITCHED).await.map_err(|e| peer.explain(&e))?;
        // What was published before is not heard any more. And what it has published it says together with the epoch.
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

    /// A sentinel says that the server is there: another one is left, and who waits for a connection tries again at once.
    fn moved(&self, there: &At) {
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
        self.relocated.notify_one();
    }

    /// Uses this connection from now on, unless the server was moved while it was made.
    pub(super) fn put(&self, wire: Wire) -> Result<()> {
        // Whoever moves the server says so first, and then looks for a connection: it finds this one, or this finds what it said.
        let mut state = self.state_mut();
        self.still_there(&wire.at)?;
        if !matches!(*state, State::Closed) {
            let server = wire.server.clone();
            *state = State::Up(Arc::new(wire));
            let before = locked(&self.led_to).replace(server.clone());
            // The first one, too: a node of a Cluster may be heard of before it is reached.
            if before.is_none_or(|before| before != server) {
                self.inbox.replaced.notify_one();
            }
        }
        Ok(())
    }

    fn left(&self, at: &At) -> Error {
        let text = format!("{}: the sentinels have put another server in its place", at.address);
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// Asks one sentinel. Its two answers are of one instant; the address alone is of the server that is being promoted.
async fn ask(master: &str, peer: &Peer, connection: &mut MultiplexedConnection) -> Result<Said> {
    let mut questions = redis::pipe();
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    questions.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers = connection.send_packed_commands(&questions, 0, 2).await.map_err(|e| peer.explain(&e))?;
    let mut answers = answers.into_iter();
    let address = answers.next().unwrap_or_default().extract_error().map_err(|e| peer.explain(&e))?;
    let facts = answers.next().unwrap_or_default();
    if address == Value::Nil {
        let what = format!("it knows no master with the name {master:?}");
        return Err(peer.at(&Error::new(ErrorKind::Invalid, what)));
    }
    let facts = facts.extract_error().map_err(|e| peer.explain(&e))?;
    read(address, &facts)
        .ok_or_else(|| peer.at(&Error::new(ErrorKind::Internal, "it answered what no Sentinel should")))
}

/// What the two answers say.
fn read(address: Value, facts: &Value) -> Option<Said> {
    let (host, port) = from_redis_value::<(String, String)>(address).ok()?;
    let Value::Map(facts) = facts else { return None };
    let epoch = facts.iter().find(|(fact, _)| text(fact) == "config-epoch").map(|(_, epoch)| text(epoch))?;
    Some(Said { host, port: port.parse().ok()?, epoch: epoch.parse().ok()? })
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
        let at = |address: &str, epoch| At { address: address.to_owned(), epoch };
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
            assert!(read(address(port), &facts(epoch)).is_none(), "{port} {epoch}");
        }
        fuzz(include_str!("../../corpus/answers"), |bytes| {
            let Ok(answer) = redis::parse_redis_value(bytes) else { return };
            assert!(read(answer.clone(), &Value::Nil).is_none());
            let _ = (read(answer.clone(), &facts("3")), read(address("1"), &answer));
        });
    }
}
