//! One connection that is made again for as long as the store lives.
//!
//! The client crate reconnects never (`MultiplexedConnection`) or gives up (`ConnectionManager`), and neither notices a
//! link that is dead but open. Here one task per store waits for trouble: a broken socket, a server that may not write, or
//! a request that is not answered soon. A connection in doubt has to answer before another one is made: whichever is first is
//! used from then on, and what is in flight on a connection ends with it. The rest sees a connection, or an error at once.

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Subscription, locked};
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisResult, Value,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::error::{again, ends_connection, of_connect, of_mode, of_request};
use crate::inbox::Inbox;

/// The pause before the first attempt to connect again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// After this part of its limit an unanswered request makes its connection doubtful.
const SLOW: u32 = 4;
/// After this part of the limit of a request a connection in doubt is given a rival.
const HEAD_START: u32 = 20;
/// After how long an idle connection is probed by the kernel, and how often then.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// The store's connection: a handle to the state, and to the task that repairs it.
pub struct Connection {
    link: Arc<Link>,
    repair: Mutex<AbortHandle>,
}

/// What requests and the repairing task share.
struct Link {
    client: Client,
    address: String,
    timeout: Duration,
    /// How long a request may hold up the others.
    waits: Duration,
    inbox: Inbox,
    state: Mutex<State>,
    /// The state went down, or should be doubted.
    trouble: Notify,
    /// The server did something for us since the last repair.
    useful: AtomicBool,
    /// How many connections there were.
    dialled: AtomicU64,
    /// The number of the last one that is of no more use.
    ended: watch::Sender<u64>,
    /// The names that are observed, once for each observer.
    observed: Mutex<Vec<Arc<Observed>>>,
}

/// A name that somebody observes, and the channel on which its changes are told.
struct Observed {
    channel: String,
    name: Name,
}

/// Ends the observing of one observer.
struct Observation(Arc<Link>, Arc<Observed>);

impl Drop for Observation {
    fn drop(&mut self) {
        locked(&self.0.observed).retain(|observed| !Arc::ptr_eq(observed, &self.1));
        self.0.trouble.notify_one();
    }
}

/// One connection, its number, how much came over it, and the channels that it is subscribed to.
#[derive(Clone)]
struct Wire {
    connection: MultiplexedConnection,
    nth: u64,
    came: Arc<AtomicU64>,
    heard: Arc<Mutex<BTreeSet<String>>>,
}

enum State {
    Up(Wire),
    Down(Error),
    Closed,
}

impl Connection {
    /// Connects and subscribes; later connections are made in the background.
    pub async fn open(info: ConnectionInfo, timeout: Duration, inbox: &Inbox) -> Result<Connection> {
        Connection::open_for_waits(info, timeout, Duration::ZERO, inbox).await
    }

    /// The same for requests that hold up whatever comes behind them, for so long each.
    pub async fn open_for_waits(
        info: ConnectionInfo,
        timeout: Duration,
        waits: Duration,
        inbox: &Inbox,
    ) -> Result<Connection> {
        let connection = Connection::make(info, timeout, waits, inbox)?;
        connection.dial().await?;
        Ok(connection)
    }

    /// One that is not made yet.
    pub fn new(info: ConnectionInfo, timeout: Duration, inbox: &Inbox) -> Result<Connection> {
        Connection::make(info, timeout, Duration::ZERO, inbox)
    }

    fn make(info: ConnectionInfo, timeout: Duration, waits: Duration, inbox: &Inbox) -> Result<Connection> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Unsupported, "a store on Redis connects only inside a tokio runtime"))?;
        let address = info.addr().to_string();
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        let client = Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp)).map_err(|e| of_connect(&e))?;
        let down = State::Down(Error::new(ErrorKind::Unavailable, format!("{address}: not connected yet")));
        let link = Arc::new(Link {
            client,
            address,
            timeout: timeout + waits,
            waits,
            inbox: inbox.clone(),
            state: Mutex::new(down),
            trouble: Notify::new(),
            useful: AtomicBool::new(true),
            dialled: AtomicU64::new(0),
            ended: watch::Sender::new(0),
            observed: Mutex::default(),
        });
        let repair = Mutex::new(runtime.spawn(repair(link.clone())).abort_handle());
        Ok(Connection { link, repair })
    }

    /// Makes it for the first time. If that fails, it is tried again in the background all the same.
    pub async fn dial(&self) -> Result<()> {
        let dialled = self.link.dial().await;
        if let Err(e) = &dialled {
            self.link.set(State::Down(again(e)));
            self.link.trouble.notify_one();
        }
        dialled
    }

    /// The server's address, for people.
    pub fn address(&self) -> &str {
        &self.link.address
    }

    /// Sends several requests in one flight. A refusal by the server is a [`Value::ServerError`] among the answers.
    pub async fn send(&self, requests: &Pipeline) -> Result<Vec<Value>> {
        let (link, mut wire) = (&self.link, self.wire()?);
        let doubt = Doubt(link);
        let mut ended = link.ended.subscribe();
        let ended = ended.wait_for(|ended| *ended >= wire.nth);
        let slow = async {
            sleep(link.waits + link.timeout / SLOW).await;
            link.trouble.notify_one();
            pending::<()>().await;
        };
        let answers = tokio::select! {
            biased;
            answers = wire.connection.send_packed_commands(requests, 0, requests.len()) => answers,
            _ = ended => return Err(link.at(&Error::new(ErrorKind::Ambiguous, GIVEN_UP))),
            () = slow => return Err(link.at(&Error::new(ErrorKind::Ambiguous, GIVEN_UP))),
        };
        link.judge(&wire, doubt, &answers);
        answers.map_err(|e| link.at(&of_request(&e)))
    }

    /// What the server refused, in our words.
    pub fn refusal(&self, answer: Value) -> Result<Value> {
        answer.extract_error().map_err(|e| self.link.at(&of_request(&e)))
    }

    /// Rings for this name whenever something is published in this channel, until what it returns is dropped.
    pub fn observe(&self, name: &Name, channel: String) -> Subscription {
        let observed = Arc::new(Observed { channel, name: name.clone() });
        locked(&self.link.observed).push(observed.clone());
        self.link.trouble.notify_one();
        Subscription::new(Observation(self.link.clone(), observed))
    }

    /// Ends the connection for good.
    pub fn close(&self) {
        *self.link.state() = State::Closed;
        locked(&self.repair).abort();
    }

    /// The connection, and a task that repairs it: where the runtime of the last one ended, the caller's takes over.
    fn wire(&self) -> Result<Wire> {
        let wire = self.link.wire();
        let mut task = locked(&self.repair);
        if task.is_finished()
            && !matches!(&wire, Err(e) if e.kind() == ErrorKind::Closed)
            && let Ok(runtime) = Handle::try_current()
        {
            self.link.trouble.notify_one();
            *task = runtime.spawn(repair(self.link.clone())).abort_handle();
        }
        wire
    }
}

const GIVEN_UP: &str = "the connection to Redis was given up before the answer came";

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.link.state() {
            State::Up(_) => f.write_str("connected"),
            State::Down(e) => write!(f, "not connected: {e}"),
            State::Closed => f.write_str("closed"),
        }
    }
}

/// A request that is under way. If it is dropped before its answer came, by a limit of ours or by the caller, the
/// connection is doubted.
struct Doubt<'a>(&'a Link);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        self.0.trouble.notify_one();
    }
}

impl Link {
    /// The connection, or why there is none.
    fn wire(&self) -> Result<Wire> {
        match &*self.state() {
            State::Up(wire) => Ok(wire.clone()),
            State::Down(e) => Err(again(e)),
            State::Closed => Err(Error::new(ErrorKind::Closed, "the store was closed")),
        }
    }

    /// The same error, with the server's address.
    fn at(&self, e: &Error) -> Error {
        Error::new(e.kind(), format!("{}: {e}", self.address))
    }

    /// What the answers to requests say of the connection.
    fn judge(&self, wire: &Wire, doubt: Doubt<'_>, answers: &RedisResult<Vec<Value>>) {
        match answers {
            Ok(answers) => {
                std::mem::forget(doubt);
                wire.came.fetch_add(1, Ordering::Relaxed);
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
            // Silence: the doubt stands.
            Err(_) => {}
        }
    }

    /// The connection of this number is of no more use.
    fn fail(&self, nth: u64, why: Error) {
        let mut state = self.state();
        if matches!(&*state, State::Up(wire) if wire.nth == nth) {
            *state = State::Down(why);
            self.ended.send_replace(nth);
            self.trouble.notify_one();
        }
    }

    /// Rings for those who observe one of these channels.
    fn stir(&self, channels: &[impl AsRef<[u8]>]) {
        let observed = locked(&self.observed);
        let theirs = |o: &&Arc<Observed>| channels.iter().any(|channel| channel.as_ref() == o.channel.as_bytes());
        observed.iter().filter(theirs).for_each(|o| self.inbox.notifier().holder_changed(&o.name));
    }

    /// Makes a connection, and uses it.
    async fn dial(self: &Arc<Self>) -> Result<()> {
        let wire = self.make().await?;
        self.set(State::Up(wire));
        Ok(())
    }

    /// Makes a connection that hears its channel, to a server that can keep locks: within two timeouts, or why not.
    async fn make(self: &Arc<Self>) -> Result<Wire> {
        let nth = self.dialled.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Arc::downgrade(self);
        let hear = move |push: PushInfo| {
            match (link.upgrade(), push.kind, &push.data[..]) {
                (Some(link), PushKind::Message, [Value::BulkString(channel), Value::BulkString(record)]) => {
                    link.inbox.ring(record);
                    link.stir(&[channel]);
                }
                (Some(link), PushKind::Disconnection, _) => {
                    link.fail(nth, link.at(&Error::new(ErrorKind::Unavailable, "the connection to Redis broke")));
                }
                _ => {}
            }
            Ok::<(), redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(hear);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|e| self.at(&of_connect(&e)))?;
        let wire = Wire { connection: connection.clone(), nth, came: Arc::default(), heard: Arc::default() };
        tokio::try_join!(self.asks_mode(connection), self.tune(&wire))?;
        Ok(wire)
    }

    /// Refuses servers that hold no locks, or not all.
    async fn asks_mode(&self, mut connection: MultiplexedConnection) -> Result<()> {
        let answer = connection.send_packed_command(&redis::cmd("HELLO")).await;
        let Value::Map(facts) = answer.map_err(|e| self.at(&of_connect(&e)))? else { return Ok(()) };
        let text = |value: &Value| redis::from_redis_value::<String>(value.clone()).unwrap_or_default();
        let mode = facts.iter().find(|(fact, _)| text(fact) == "mode").map(|(_, mode)| text(mode));
        mode.and_then(|mode| of_mode(&mode)).map_or(Ok(()), |e| Err(self.at(&e)))
    }

    /// Subscribes to what is listened to, and to nothing else.
    async fn tune(&self, wire: &Wire) -> Result<()> {
        let mut connection = wire.connection.clone();
        let observed: Vec<String> = locked(&self.observed).iter().map(|o| o.channel.clone()).collect();
        let wanted: BTreeSet<String> = observed.into_iter().chain([self.inbox.channel().to_owned()]).collect();
        let refused = |e| self.at(&of_connect(&e));
        connection.subscribe(&wanted).await.map_err(refused)?;
        let heard = std::mem::replace(&mut *locked(&wire.heard), wanted.clone());
        let old: Vec<_> = heard.difference(&wanted).collect();
        if !old.is_empty() {
            connection.unsubscribe(old).await.map_err(refused)?;
        }
        self.stir(&wanted.difference(&heard).collect::<Vec<_>>());
        Ok(())
    }

    /// Doubts a connection: it has to answer, before another one does; also to an older request, since its requests may be many.
    /// Says whether it was replaced.
    async fn doubt(self: &Arc<Self>, wire: &Wire) -> Result<bool> {
        let before = wire.came.load(Ordering::Relaxed);
        let rival = async {
            sleep(self.waits + self.timeout / HEAD_START).await;
            self.make().await
        };
        tokio::select! {
            biased;
            answered = self.tune(wire) => answered.map(|()| false),
            Ok(rival) = rival => {
                if wire.came.load(Ordering::Relaxed) != before {
                    return Ok(false);
                }
                self.set(State::Up(rival));
                self.ended.send_replace(wire.nth);
                Ok(true)
            }
        }
    }

    fn set(&self, new: State) {
        let mut state = self.state();
        if !matches!(*state, State::Closed) {
            *state = new;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

/// Waits for trouble and makes a new connection, for ever. A server that does nothing for us (a replica, one that loads)
/// is asked ever more rarely, as one that is not there.
async fn repair(link: Arc<Link>) {
    let mut pause = PAUSES.0;
    loop {
        link.trouble.notified().await;
        if let Ok(wire) = link.wire() {
            match link.doubt(&wire).await {
                Ok(replaced) => {
                    if replaced {
                        link.inbox.notifier().notify_all();
                    }
                    continue;
                }
                Err(why) => link.fail(wire.nth, why),
            }
        }
        if link.useful.swap(false, Ordering::Relaxed) {
            pause = PAUSES.0;
        }
        loop {
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSES.1);
            match link.dial().await {
                Ok(()) => break,
                Err(e) => link.set(State::Down(e)),
            }
        }
        // Pushes may have been missed, and renewals were given up.
        link.inbox.notifier().notify_all();
    }
}
