//! What requests and the repairing task share: the connection as it is now, and how another one is made.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value, from_redis_value_ref};
use scopeguard::guard;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::connection::driver::{UnderWay, open};
use crate::connection::peer::Peer;
use crate::connection::sentinel::{At, Home};
use crate::error::{again, ends_connection, of_connect, of_mode};
use crate::inbox::Inbox;

/// After this part of the limit of a request another connection is made in the place of a suspect one.
const HEAD_START: u32 = 20;

/// How many bytes of requests are written together.
const AT_ONCE: usize = 1 << 16;

/// What requests and the repairing task share.
pub(super) struct Link {
    pub(super) home: Home,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<leasehold_tls::Tls>,
    /// The server is to be a node of a Cluster.
    pub(super) cluster: bool,
    pub(super) address: String,
    pub(super) timeout: Duration,
    /// How long a request may block the others.
    pub(super) waits: Duration,
    pub(super) inbox: Inbox,
    pub(super) state: RwLock<State>,
    /// The connection is down, or suspect.
    pub(super) repair_due: Notify,
    /// Where sentinels have said that the server is, and that this is news.
    pub(super) heard: Mutex<At>,
    pub(super) relocated: Notify,
    /// Which server the last connection led to.
    pub(super) led_to: Mutex<Option<Arc<str>>>,
    /// The server did something for us since the last repair.
    pub(super) useful: AtomicBool,
    /// How many connections were made.
    pub(super) made: AtomicU64,
    /// The names that are observed, once for each observer.
    pub(super) observed: Mutex<Vec<Arc<Observed>>>,
}

/// A name with an observer, and the channel on which its changes are published.
pub(super) struct Observed {
    pub(super) channel: String,
    pub(super) name: Name,
}

/// One connection. What is in flight ends with its task.
pub(super) struct Wire {
    /// Without a limit of its own: callers have theirs.
    pub(super) connection: MultiplexedConnection,
    task: Option<AbortHandle>,
    pub(super) nth: u64,
    /// Where it leads.
    pub(super) at: At,
    /// Which server that is: another one has another text, also at the same address.
    pub(super) server: Arc<str>,
    under_way: UnderWay,
    /// How many requests it answered.
    answered: AtomicU64,
    /// The channels that it is subscribed to.
    subscribed: Mutex<BTreeSet<String>>,
}

impl Wire {
    /// One more request, until this is dropped.
    pub(super) fn under_way(&self) -> impl Drop + '_ {
        self.under_way.come();
        guard(&self.under_way.count, |count| {
            count.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Lets its task run now, if it waits for others.
    pub(super) fn hurry(&self) {
        self.under_way.task.wake();
    }

    fn end(&self) {
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

    /// The same error, with the server's address, and the name by which sentinels know it.
    pub(super) fn at(&self, e: &Error) -> Error {
        match &*self.state() {
            State::Up(wire) => self.of(wire, e),
            _ => Error::new(e.kind(), format!("{}: {e}", self.address)),
        }
    }

    fn of(&self, wire: &Wire, e: &Error) -> Error {
        let (name, at) = (&self.address, &wire.at.address);
        let text = if self.home.moves() { format!("{name} at {at}: {e}") } else { format!("{at}: {e}") };
        Error::new(e.kind(), text)
    }

    /// What the answers to requests say of the connection.
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
            // Silence: the connection stays suspect.
            Err(_) => {}
        }
    }

    /// The connection of this number is of no more use.
    pub(super) fn fail(&self, nth: u64, why: Error) {
        let mut state = self.state_mut();
        if let State::Up(wire) = &*state
            && wire.nth == nth
        {
            // Callers may be told of it only once no hold from before is taken for sure.
            self.inbox.notifier.interrupted(Moment::now());
            wire.end();
            *state = State::Down(why);
            self.repair_due.notify_one();
        }
    }

    /// Notifies the observers of these channels.
    fn notify_observers(&self, channels: &[impl AsRef<[u8]>]) {
        let observed = locked(&self.observed);
        let theirs = |o: &&Arc<Observed>| channels.iter().any(|channel| channel.as_ref() == o.channel.as_bytes());
        observed.iter().filter(theirs).for_each(|o| self.inbox.notifier.holder_changed(&o.name));
    }

    /// Makes a connection, and uses it.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<()> {
        self.put(self.make().await?)
    }

    /// Makes a connection that is subscribed to its channel, to a server that can keep locks: within two timeouts, or why not.
    async fn make(self: &Arc<Self>) -> Result<Wire> {
        let nth = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let (peer, at) = self.locate().await?;
        let link = Arc::downgrade(self);
        let on_push = move |push: PushInfo| {
            match (link.upgrade(), push.kind, &push.data[..]) {
                (Some(link), PushKind::Message, [Value::BulkString(channel), Value::BulkString(record)]) => {
                    link.inbox.receive(record);
                    link.notify_observers(&[channel]);
                }
                (Some(link), PushKind::Disconnection, _) => {
                    link.fail(nth, link.at(&Error::new(ErrorKind::Unavailable, "the connection to Redis broke")));
                }
                _ => {}
            }
            Ok::<(), redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_write_backpressure_boundary(AT_ONCE)
            .set_push_sender(on_push);
        let under_way = UnderWay::default();
        let (connection, task) = self.open(&peer, config, under_way.clone()).await?;
        let (server, answered, subscribed) = Default::default();
        let mut wire = Wire { connection, task, nth, at, server, under_way, answered, subscribed };
        (wire.server, ()) = tokio::try_join!(self.check_mode(&peer, &wire), self.subscribe(&wire))?;
        Ok(wire)
    }

    /// A connection with the limit of a request, and what is pushed on it.
    pub(super) async fn listener(&self) -> Result<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
        let (pushed, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timeout)).set_push_sender(pushed);
        let (peer, _) = self.locate().await?;
        let (connection, _) = self.open(&peer, config, UnderWay::default()).await?;
        Ok((connection, pushes))
    }

    /// Makes a connection, and shows its credentials.
    pub(super) async fn open(
        &self,
        peer: &Peer,
        config: AsyncConnectionConfig,
        under_way: UnderWay,
    ) -> Result<(MultiplexedConnection, Option<AbortHandle>)> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Box::pin(self.open_secure(tls, peer, config, under_way)).await;
        }
        let opened = timeout(self.timeout, open(&peer.client, config, under_way)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        opened.map_err(|e| peer.explain_plain(&e))
    }

    /// Refuses servers that hold no locks, or not all. One that sentinels name, too late or too early, has to be a master. Says which
    /// server it is: by the number that it gave itself at its start, or else by its address.
    async fn check_mode(&self, peer: &Peer, wire: &Wire) -> Result<Arc<str>> {
        let (mut connection, mut questions) = (self.limited(wire), redis::pipe());
        questions.cmd("HELLO").cmd("INFO").arg("server");
        let answers = connection.send_packed_commands(&questions, 0, 2).await.map_err(|e| peer.explain(&e))?;
        let mut answers = answers.into_iter();
        let (mode, info) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let text = |value: &Value| from_redis_value_ref::<String>(value).unwrap_or_default();
        // A user who may not ask gets a refusal, which has no text.
        let server = text(&info)
            .lines()
            .find_map(|line| line.strip_prefix("run_id:"))
            .map_or_else(|| Arc::from(wire.at.address.as_str()), Arc::from);
        let Value::Map(facts) = mode.extract_error().map_err(|e| peer.explain(&e))? else { return Ok(server) };
        let fact = |name| facts.iter().find(|(fact, _)| text(fact) == name).map(|(_, fact)| text(fact));
        if let Some(e) = fact("mode").and_then(|mode| of_mode(&mode, self.cluster)) {
            return Err(peer.at(&e));
        }
        match fact("role") {
            Some(role) if self.home.moves() && role != "master" => {
                let what = "the sentinels name it as the master, and it is a replica: is a failover under way?";
                Err(peer.at(&Error::new(ErrorKind::Unavailable, what)))
            }
            _ => Ok(server),
        }
    }

    /// Subscribes to what is observed, and to nothing else.
    async fn subscribe(&self, wire: &Wire) -> Result<()> {
        let mut connection = self.limited(wire);
        let observed: Vec<String> = locked(&self.observed).iter().map(|o| o.channel.clone()).collect();
        let wanted: BTreeSet<String> = observed.into_iter().chain([self.inbox.channel.clone()]).collect();
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

    /// The connection with the limit of a request.
    fn limited(&self, wire: &Wire) -> MultiplexedConnection {
        let mut connection = wire.connection.clone();
        connection.set_response_timeout(self.timeout);
        connection
    }

    /// Checks a suspect connection: it has to answer before another one does, be it to an older request, since there may be many.
    /// Answers whether it was replaced.
    pub(super) async fn check(self: &Arc<Self>, wire: &Wire) -> Result<bool> {
        let before = wire.answered.load(Ordering::Relaxed);
        let replacement = async {
            sleep(self.waits + self.timeout / HEAD_START).await;
            self.make().await
        };
        tokio::select! {
            biased;
            answered = self.subscribe(wire) => answered.map(|()| false),
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

    /// Read by every request, so readers do not keep one another waiting.
    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
