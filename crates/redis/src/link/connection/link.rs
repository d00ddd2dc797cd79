//! The state that requests share with the repairing task: the current connection, and the means to
//! make another one.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::support::{Signal, locked};
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value, from_redis_value_ref};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::link::connection::endpoint::Endpoint;
use crate::link::connection::open::{NotOpened, open};
use crate::link::connection::plain;
use crate::link::connection::sentinel::{ServerAddress, ServerSource};
use crate::link::error::{
    NoHello, again, ends_connection, is_elsewhere, of_connect, of_mode, of_spread,
};
use crate::link::inbox::Inbox;
use crate::link::mark::StoreMark;
use crate::link::server::{Admission, Protocol};

/// A suspect connection has this part of a request's time limit to answer before another one is
/// made.
const HEAD_START: u32 = 20;

/// The number of bytes of requests that are written together.
const AT_ONCE: usize = 1 << 16;

/// The state that requests share with the repairing task.
pub(super) struct Link {
    pub(super) home: ServerSource,
    pub(super) tls: Option<leasehold_net::Tls>,
    /// The server has to be a node of a Cluster.
    pub(super) cluster: bool,
    pub(super) admission: Option<Admission>,
    pub(super) mark: Option<Arc<StoreMark>>,
    /// The protocol that may be spoken, and the one of the first connection, which stays.
    pub(super) protocol: Protocol,
    pub(super) spoken: OnceLock<Protocol>,
    pub(super) address: String,
    pub(super) timeout: Duration,
    /// The time for which a request may block the others.
    pub(super) waits: Duration,
    pub(super) inbox: Inbox,
    pub(super) state: RwLock<State>,
    /// Notified when the connection is down or suspect.
    pub(super) repair_due: Signal,
    /// The latest place of the server that sentinels have told; `relocated` is notified of news.
    pub(super) heard: Mutex<ServerAddress>,
    pub(super) relocated: Signal,
    /// The server that the last connection led to.
    pub(super) led_to: Mutex<Option<Arc<str>>>,
    /// The server did something for us since the last repair.
    pub(super) useful: AtomicBool,
    /// The number of connections that were made.
    pub(super) made: AtomicU64,
    /// The names that are observed, once for each observer.
    pub(super) observed: Mutex<Vec<Arc<Observed>>>,
}

/// A name with an observer, and the channel on which its changes are published.
pub(super) struct Observed {
    pub(super) channel: String,
    pub(super) name: Name,
}

/// One connection. Requests in flight end with its task.
pub(super) struct Wire {
    /// It has no time limit of its own: callers have theirs.
    pub(super) connection: MultiplexedConnection,
    task: Option<AbortHandle>,
    /// It speaks RESP3.
    pushes: bool,
    pub(super) nth: u64,
    /// The server's address, and the failover that put it there.
    pub(super) at: ServerAddress,
    /// Identifies the server: another server has another text, also at an equal address.
    pub(super) server: Arc<str>,
    /// The number of requests that it answered.
    answered: AtomicU64,
    /// The channels that the connection is subscribed to.
    subscribed: Mutex<BTreeSet<String>>,
    /// True once its task is to end. That task may be in a runtime that is not driven.
    ended: watch::Sender<bool>,
}

impl Wire {
    fn new(
        connection: MultiplexedConnection,
        task: Option<AbortHandle>,
        nth: u64,
        at: &ServerAddress,
        pushes: bool,
    ) -> Wire {
        Wire {
            connection,
            task,
            pushes,
            nth,
            server: at.address.as_str().into(),
            at: at.clone(),
            answered: AtomicU64::default(),
            subscribed: Mutex::default(),
            ended: watch::Sender::default(),
        }
    }

    /// Completes when the connection has ended.
    pub(super) async fn ended(&self) {
        drop(self.ended.subscribe().wait_for(|ended| *ended).await);
    }

    fn end(&self) {
        self.ended.send_replace(true);
        self.task.iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) enum State {
    Up(Arc<Wire>),
    Down(Error),
    Closed,
}

impl Link {
    /// The connection, or why there is none.
    pub(super) fn wire(&self) -> Result<Arc<Wire>> {
        match &*self.state() {
            State::Up(wire) => Ok(wire.clone()),
            State::Down(e) => Err(again(e)),
            State::Closed => Err(Error::closed()),
        }
    }

    /// Adds the server's address to an error, and the name by which sentinels know the server.
    pub(super) fn at(&self, e: &Error) -> Error {
        match &*self.state() {
            State::Up(wire) => self.of(wire, e),
            _ => Error::new(e.kind(), format!("{}: {e}", self.address)),
        }
    }

    fn of(&self, wire: &Wire, e: &Error) -> Error {
        let name = &self.address;
        let at = &wire.at.address;
        let text = if self.home.moves() {
            format!("{name} at {at}: {e}")
        } else {
            format!("{at}: {e}")
        };
        Error::new(e.kind(), text)
    }

    /// Draws conclusions about the connection from the answers to requests.
    pub(super) fn note_answers(&self, wire: &Wire, answers: Result<&[Value], &RedisError>) {
        match answers {
            Ok(answers) => {
                wire.answered.fetch_add(1, Ordering::Relaxed);
                let refusals = answers.iter().filter_map(|answer| match answer {
                    Value::ServerError(e) => Some(e.clone().into()),
                    _ => None,
                });
                match refusals.into_iter().find(ends_connection) {
                    Some(e) => self.fail(wire.nth, self.at(&of_connect(&e))),
                    None => self.useful.store(true, Ordering::Relaxed),
                }
            }
            Err(e) if ends_connection(e) => self.fail(wire.nth, self.at(&of_connect(e))),
            // Without an answer the connection stays suspect.
            Err(_) => {}
        }
    }

    /// Ends the connection of this number, which is of no more use.
    pub(super) fn fail(&self, nth: u64, why: Error) {
        let mut state = self.state_mut();
        if let State::Up(wire) = &*state
            && wire.nth == nth
        {
            // Callers may learn of the failure only after this: no earlier hold counts as certain
            // from here on.
            self.inbox.notifier.interrupted(Moment::now());
            wire.end();
            *state = State::Down(why);
            self.repair_due.notify();
        }
    }

    /// Notes that the connection of this number broke.
    fn broke(&self, nth: u64) {
        let what = "the connection to Redis broke";
        self.fail(nth, self.at(&Error::new(ErrorKind::Unavailable, what)));
    }

    /// Notifies the observers of these channels.
    fn notify_observers(&self, channels: &[impl AsRef<[u8]>]) {
        let observed = locked(&self.observed);
        let theirs = |o: &&Arc<Observed>| {
            channels
                .iter()
                .any(|channel| channel.as_ref() == o.channel.as_bytes())
        };
        observed
            .iter()
            .filter(theirs)
            .for_each(|o| self.inbox.notifier.holder_changed(&o.name));
    }

    /// Makes a connection, and uses it.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<()> {
        self.put(self.make().await?)
    }

    /// Returns whether the server pushes: nothing is pushed over RESP2.
    pub(super) fn has_pushes(&self) -> bool {
        *self.spoken.get().unwrap_or(&self.protocol) != Protocol::Resp2
    }

    /// A key of the store that every user of it may read.
    pub(super) fn probed(&self) -> String {
        self.mark
            .as_ref()
            .map_or_else(|| "{}:store".to_owned(), |mark| mark.key.clone())
    }

    /// Makes a connection to a server that can keep locks. Once the server is located, it takes two
    /// time-outs at most; more if it may belong to another Cluster, and the first time, if the
    /// server refuses RESP3.
    async fn make(self: &Arc<Self>) -> Result<Wire> {
        let nth = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let (peer, at) = self.locate().await?;
        let protocol = *self.spoken.get().unwrap_or(&self.protocol);
        let made = match protocol {
            Protocol::Resp2 => self.make_plain(nth, &peer, &at).await?,
            Protocol::Resp3 => self.make_pushing(nth, &peer, &at).await?,
            Protocol::Either => match self.make_pushing(nth, &peer, &at).await {
                Err(NotOpened {
                    why,
                    hello: Some(how),
                }) => self.without_hello(nth, &peer, &at, (why, how)).await?,
                made => made?,
            },
        };
        let spoken = match made.pushes {
            true => Protocol::Resp3,
            false => Protocol::Resp2,
        };
        let _ = self.spoken.set(spoken);
        Ok(made)
    }

    /// Makes a connection by RESP2 to a server that refused `HELLO 3`, for this reason.
    async fn without_hello(
        self: &Arc<Self>,
        nth: u64,
        peer: &Endpoint,
        at: &ServerAddress,
        (why, how): (Error, NoHello),
    ) -> Result<Wire> {
        match (self.make_plain(nth, peer, at).await, how) {
            (Ok(made), NoHello::Said) => Ok(made),
            // A server that was just restarted closes connections, too, and a proxy has refusals of
            // its own.
            (Ok(made), NoHello::Unclear) => {
                Ok(self.make_pushing(nth, peer, at).await.unwrap_or(made))
            }
            (Err(e), NoHello::Unclear) if e.kind() == ErrorKind::Unavailable => Err(why),
            (Err(e), NoHello::Unclear) => Err(e),
            (Err(e), NoHello::Said) => Err(Error::new(e.kind(), format!("{why}; over RESP2: {e}"))),
        }
    }

    /// Makes a connection by RESP2.
    async fn make_plain(
        self: &Arc<Self>,
        nth: u64,
        peer: &Endpoint,
        at: &ServerAddress,
    ) -> Result<Wire> {
        let peer = &peer.by_resp2()?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_write_backpressure_boundary(AT_ONCE);
        let link = Arc::downgrade(self);
        let on_end = move || link.upgrade().iter().for_each(|link| link.broke(nth));
        let (connection, task) = self.open(peer, config, on_end).await?;
        let mut wire = Wire::new(connection, task, nth, at, false);
        let mut connection = self.limited(&wire);
        let key = self.probed();
        let asked = plain::info(&key, &["server", "replication"]);
        let told: Vec<String> = asked
            .query_async(&mut connection)
            .await
            .map_err(|e| peer.explain_plain(&e))?;
        let told = told.concat();
        let fact = |name: &str| {
            let lines = told.lines();
            lines
                .into_iter()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        self.check_role(
            peer,
            fact("redis_mode"),
            fact("role").map(|role| match role {
                "slave" => "replica",
                role => role,
            }),
        )?;
        check_replica(peer, &told)?;
        if let Some(run) = fact("run_id") {
            wire.server = run.into();
        }
        self.check_mark(peer, &wire).await?;
        let known: Option<String> = redis::cmd("GET")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .map_err(|e| peer.explain(&e))?;
        let probes = plain::probes(&key);
        let found = connection
            .send_packed_commands(&probes, 0, probes.len())
            .await
            .map_err(|e| peer.explain(&e))?;
        for found in found {
            let found = found.extract_error().map_err(|e| peer.explain(&e))?;
            if from_redis_value_ref::<Option<String>>(&found).ok() != Some(known.clone()) {
                return Err(peer.at(&of_spread()));
            }
        }
        Ok(wire)
    }

    /// Makes a connection by RESP3 that is subscribed to its channel.
    async fn make_pushing(
        self: &Arc<Self>,
        nth: u64,
        peer: &Endpoint,
        at: &ServerAddress,
    ) -> Result<Wire, NotOpened> {
        let link = Arc::downgrade(self);
        let on_push = move |push: PushInfo| {
            match (link.upgrade(), push.kind, &push.data[..]) {
                (
                    Some(link),
                    PushKind::Message,
                    [Value::BulkString(channel), Value::BulkString(record)],
                ) => {
                    link.inbox.receive(record);
                    link.notify_observers(&[channel]);
                }
                (Some(link), PushKind::Disconnection, _) => link.broke(nth),
                _ => {}
            }
            Ok::<(), redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_write_backpressure_boundary(AT_ONCE)
            .set_push_sender(on_push);
        let (connection, task) = self.open(peer, config, || ()).await?;
        let mut wire = Wire::new(connection, task, nth, at, true);
        // Nothing is written to a server that holds no locks, and one that is not used has no
        // subscriber: a second one of a client would be taken for a second address of one node.
        wire.server = self.check_mode(peer, &wire).await?;
        self.check_mark(peer, &wire).await?;
        self.subscribe(&wire).await?;
        Ok(wire)
    }

    /// Fails if the database may not be used. Writes the mark if there is none. Unless the mark is
    /// pinned, a user without the right to read it, and a server that does not write now, are judged
    /// by other requests. In a Cluster one node has the mark, and the others name that one.
    async fn check_mark(&self, peer: &Endpoint, wire: &Wire) -> Result<()> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        let mut connection = self.limited(wire);
        let mut read = redis::cmd("GET");
        read.arg(&mark.key);
        let mut known: redis::RedisResult<Option<String>> = read.query_async(&mut connection).await;
        if let Ok(None) = known {
            let mut write = redis::cmd("SET");
            write.arg(&mark.key).arg(mark.new_mark()).arg("NX");
            known = match write.query_async::<Value>(&mut connection).await {
                Ok(_) => read.query_async(&mut connection).await,
                Err(e) => Err(e),
            };
        }
        match known {
            Ok(Some(known)) => mark.check(&known).map_err(|e| peer.at(&e)),
            Err(e) if self.cluster && is_elsewhere(&e) => Ok(()),
            Err(e) if mark.is_pinned() || e.is_io_error() || e.is_timeout() => {
                Err(peer.explain(&e))
            }
            _ => Ok(()),
        }
    }

    /// Makes a connection, and authenticates.
    pub(super) async fn open(
        &self,
        peer: &Endpoint,
        config: AsyncConnectionConfig,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<(MultiplexedConnection, Option<AbortHandle>), NotOpened> {
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = &self.tls {
            return Box::pin(self.open_secure(tls, peer, config, on_end)).await;
        }
        #[cfg(feature = "tls-no-provider")]
        peer.prepare_its_tls();
        let opened = timeout(self.timeout, open(&peer.client, config, on_end)).await;
        let opened =
            opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        opened.map_err(|e| NotOpened::of(&e, |e| peer.explain_plain(e)))
    }

    /// Refuses servers that hold no locks, or not all of them. A server that sentinels name has to
    /// be a master, since they may name it too late or too early, and a node has to belong to the
    /// right Cluster. Returns the server's identity: the number that it gave itself at its start,
    /// or else its address.
    async fn check_mode(&self, peer: &Endpoint, wire: &Wire) -> Result<Arc<str>> {
        let mut connection = self.limited(wire);
        let mut questions = redis::pipe();
        questions.cmd("HELLO").cmd("INFO").arg("server");
        if self.admission.is_some() {
            questions.cmd("CLUSTER").arg("SLOTS");
        }
        let answers = connection
            .send_packed_commands(&questions, 0, questions.len())
            .await
            .map_err(|e| peer.explain(&e))?;
        let mut answers = answers.into_iter();
        let mode = answers.next().unwrap_or_default();
        let info = answers.next().unwrap_or_default();
        let text = |value: &Value| from_redis_value_ref::<String>(value).unwrap_or_default();
        // A user without the right to ask gets a refusal, which has no text.
        let server = text(&info)
            .lines()
            .find_map(|line| line.strip_prefix("run_id:"))
            .map_or_else(|| Arc::from(wire.at.address.as_str()), Arc::from);
        let facts = match mode.extract_error().map_err(|e| peer.explain(&e))? {
            Value::Map(facts) => facts,
            _ => Vec::new(),
        };
        let fact = |name| {
            facts
                .iter()
                .find(|(fact, _)| text(fact) == name)
                .map(|(_, fact)| text(fact))
        };
        let role = fact("role");
        self.check_role(peer, fact("mode").as_deref(), role.as_deref())?;
        // A replica of a Cluster refers to its primary.
        if role.as_deref() == Some("replica") && !self.cluster {
            let mut ask = redis::cmd("INFO");
            ask.arg("replication");
            let told = connection.send_packed_command(&ask).await;
            // Without the right to ask it is not known whether the replica takes writes.
            let told = told.and_then(Value::extract_error);
            check_replica(peer, &text(&told.map_err(|e| peer.explain(&e))?))?;
        }
        if let (Some(admission), Some(slots)) = (&self.admission, answers.next()) {
            let slots = slots.extract_error().map_err(|e| peer.explain(&e))?;
            admission.check(slots).await.map_err(|e| peer.at(&e))?;
        }
        Ok(server)
    }

    /// Refuses a server of this mode and role, if it holds no locks, or may not.
    fn check_role(&self, peer: &Endpoint, mode: Option<&str>, role: Option<&str>) -> Result<()> {
        if let Some(e) = mode.and_then(|mode| of_mode(mode, self.cluster)) {
            return Err(peer.at(&e));
        }
        if self.home.moves() && role.is_some_and(|role| role != "master") {
            let what = "the sentinels name it as the master, and it is a replica: is a failover under way?";
            return Err(peer.at(&Error::new(ErrorKind::Unavailable, what)));
        }
        Ok(())
    }

    /// Subscribes to this client's channel and those of observed names, and to nothing else.
    async fn subscribe(&self, wire: &Wire) -> Result<()> {
        let mut connection = self.limited(wire);
        let observed: Vec<String> = locked(&self.observed)
            .iter()
            .map(|o| o.channel.clone())
            .collect();
        let wanted: BTreeSet<String> = observed
            .into_iter()
            .chain([self.inbox.channel.clone()])
            .collect();
        let refused = |e| self.of(wire, &of_connect(&e));
        connection.subscribe(&wanted).await.map_err(refused)?;
        let subscribed = std::mem::replace(&mut *locked(&wire.subscribed), wanted.clone());
        let old: Vec<_> = subscribed.difference(&wanted).collect();
        if !old.is_empty() {
            connection.unsubscribe(old).await.map_err(refused)?;
        }
        self.notify_observers(&wanted.difference(&subscribed).collect::<Vec<_>>());
        Ok(())
    }

    /// Asks for any answer over a connection, and subscribes it to what it should be subscribed to.
    async fn ask(&self, wire: &Wire) -> Result<()> {
        if wire.pushes {
            return self.subscribe(wire).await;
        }
        let mut get = redis::cmd("GET");
        get.arg(self.probed());
        let mut connection = self.limited(wire);
        match get.query_async::<Value>(&mut connection).await {
            Err(e) if e.code().is_none() => Err(self.of(wire, &of_connect(&e))),
            _ => Ok(()),
        }
    }

    /// The connection with the time limit of a request.
    fn limited(&self, wire: &Wire) -> MultiplexedConnection {
        let mut connection = wire.connection.clone();
        connection.set_response_timeout(self.timeout);
        connection
    }

    /// Checks a suspect connection: it has to answer before a new one does. The answer may be to an
    /// older request, since there may be many. Returns whether the connection was replaced.
    pub(super) async fn check(self: &Arc<Self>, wire: &Wire) -> Result<bool> {
        let before = wire.answered.load(Ordering::Relaxed);
        let replacement = async {
            sleep(self.waits + self.timeout / HEAD_START).await;
            self.make().await
        };
        tokio::select! {
            biased;
            answered = self.ask(wire) => answered.map(|()| false),
            Ok(replacement) = replacement => {
                if wire.answered.load(Ordering::Relaxed) != before {
                    return Ok(false);
                }
                self.inbox.notifier.interrupted(Moment::now());
                    self.put(replacement)?;
                wire.end();
                Ok(true)
            }
        }
    }

    pub(super) fn set(&self, new: State) {
        let mut state = self.state_mut();
        if !matches!(*state, State::Closed) {
            *state = new;
        }
    }

    /// A read lock: every request reads the state, and readers do not block one another.
    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a replica that takes writes, by what it says of its replication: it would grant what its
/// primary grants. Others are good for a look at the locks.
fn check_replica(peer: &Endpoint, told: &str) -> Result<()> {
    let says = |fact: &str| told.lines().any(|line| line == fact);
    if !(says("role:slave") && says("slave_read_only:0")) {
        return Ok(());
    }
    let what = "this Redis is a replica that takes writes (replica-read-only no), and would grant \
                what its primary grants too: the URL has to name the primary, or its sentinels";
    Err(peer.at(&Error::new(ErrorKind::Unavailable, what)))
}
