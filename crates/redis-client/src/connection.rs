//! One connection that is made again for as long as the store lives.
//!
//! The client crate reconnects never (`MultiplexedConnection`) or gives up (`ConnectionManager`), and neither notices a
//! link that is dead but open. Here one task per store waits for trouble: a broken socket, a server that may not write, or
//! a request that stayed unanswered, upon which it subscribes again: a server that is there confirms it. The rest sees a connection, or an error
//! at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Observing, locked};
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisResult, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::error::{again, ends_connection, of_connect, of_request};
use crate::inbox::Inbox;

/// The pause before the first attempt to connect again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The store's connection: a handle to the state, and to the task that repairs it.
pub struct Connection {
    link: Arc<Link>,
    address: String,
    repair: Mutex<AbortHandle>,
}

/// What requests and the repairing task share.
struct Link {
    client: Client,
    timeout: Duration,
    inbox: Inbox,
    state: Mutex<State>,
    /// The state went down, or should be doubted.
    trouble: Notify,
    /// The server did something for us since the last repair.
    useful: AtomicBool,
    /// How many connections there were.
    dialled: AtomicU64,
    /// The names that are observed, once for each observer.
    observed: Mutex<Vec<Arc<Observed>>>,
    /// What the present connection is subscribed to.
    heard: Mutex<BTreeSet<String>>,
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

enum State {
    Up { wire: MultiplexedConnection, nth: u64 },
    Down(Error),
    Closed,
}

impl Connection {
    /// Connects and subscribes; later connections are made in the background.
    pub async fn open(info: ConnectionInfo, timeout: Duration, inbox: &Inbox) -> Result<Connection> {
        let connection = Connection::new(info, timeout, inbox)?;
        connection.dial().await?;
        Ok(connection)
    }

    /// One that is not made yet.
    pub fn new(info: ConnectionInfo, timeout: Duration, inbox: &Inbox) -> Result<Connection> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Unsupported, "a store on Redis connects only inside a tokio runtime"))?;
        let address = info.addr().to_string();
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp)).map_err(|e| of_connect(&e))?;
        let down = State::Down(Error::new(ErrorKind::Unavailable, "not connected yet"));
        let link = Arc::new(Link {
            client,
            timeout,
            inbox: inbox.clone(),
            state: Mutex::new(down),
            trouble: Notify::new(),
            useful: AtomicBool::new(true),
            dialled: AtomicU64::new(0),
            observed: Mutex::default(),
            heard: Mutex::default(),
        });
        let repair = Mutex::new(runtime.spawn(repair(link.clone())).abort_handle());
        Ok(Connection { link, address, repair })
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
        &self.address
    }

    /// Sends several requests in one flight. A refusal by the server is a [`Value::ServerError`] among the answers.
    pub async fn send(&self, requests: &Pipeline) -> Result<Vec<Value>> {
        let (mut wire, nth) = self.wire()?;
        let doubt = Doubt(&self.link);
        let answers = wire.send_packed_commands(requests, 0, requests.len()).await;
        self.link.judge(nth, doubt, &answers);
        answers.map_err(|e| of_request(&e))
    }

    /// Rings for this name whenever something is published in this channel, until what it returns is dropped.
    pub fn observe(&self, name: &Name, channel: String) -> Observing {
        let observed = Arc::new(Observed { channel, name: name.clone() });
        locked(&self.link.observed).push(observed.clone());
        self.link.trouble.notify_one();
        Observing::new(Observation(self.link.clone(), observed))
    }

    /// Ends the connection for good.
    pub fn close(&self) {
        *self.link.state() = State::Closed;
        locked(&self.repair).abort();
    }

    /// The connection, and a task that repairs it: where the runtime of the last one ended, the caller's takes over.
    fn wire(&self) -> Result<(MultiplexedConnection, u64)> {
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

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.link.state() {
            State::Up { .. } => f.write_str("connected"),
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
    /// The connection and its number, or why there is none.
    fn wire(&self) -> Result<(MultiplexedConnection, u64)> {
        match &*self.state() {
            State::Up { wire, nth } => Ok((wire.clone(), *nth)),
            State::Down(e) => Err(again(e)),
            State::Closed => Err(Error::new(ErrorKind::Closed, "the store was closed")),
        }
    }

    /// What the answers to requests say of the connection.
    fn judge(&self, nth: u64, doubt: Doubt<'_>, answers: &RedisResult<Vec<Value>>) {
        match answers {
            Ok(answers) => {
                std::mem::forget(doubt);
                let refusals = answers.iter().filter_map(|answer| match answer {
                    Value::ServerError(e) => Some(e.clone().into()),
                    _ => None,
                });
                match refusals.into_iter().find(ends_connection) {
                    Some(e) => self.fail(nth, of_connect(&e)),
                    None => self.useful.store(true, Ordering::Relaxed),
                }
            }
            Err(e) if ends_connection(e) => self.fail(nth, of_connect(e)),
            // Silence: the doubt stands.
            Err(_) => {}
        }
    }

    /// The connection of this number is of no more use.
    fn fail(&self, nth: u64, why: Error) {
        let mut state = self.state();
        if matches!(&*state, State::Up { nth: now, .. } if *now == nth) {
            *state = State::Down(why);
            self.trouble.notify_one();
        }
    }

    /// Rings for those who observe one of these channels.
    fn stir(&self, channels: &[impl AsRef<[u8]>]) {
        let observed = locked(&self.observed);
        let theirs = |o: &&Arc<Observed>| channels.iter().any(|channel| channel.as_ref() == o.channel.as_bytes());
        observed.iter().filter(theirs).for_each(|o| self.inbox.bells().stirred(&o.name));
    }

    /// Makes a connection that hears its channel: within two timeouts, or why not.
    async fn dial(self: &Arc<Self>) -> Result<()> {
        let nth = self.dialled.fetch_add(1, Ordering::Relaxed);
        let link = Arc::downgrade(self);
        let hear = move |push: PushInfo| {
            match (link.upgrade(), push.kind, &push.data[..]) {
                (Some(link), PushKind::Message, [Value::BulkString(channel), Value::BulkString(record)]) => {
                    link.inbox.ring(record);
                    link.stir(&[channel]);
                }
                (Some(link), PushKind::Disconnection, _) => {
                    link.fail(nth, Error::new(ErrorKind::Unavailable, "the connection to Redis broke"));
                }
                _ => {}
            }
            Ok::<(), redis::aio::SendError>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_push_sender(hear);
        let wire = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut wire = wire.map_err(|e| of_connect(&e))?;
        locked(&self.heard).clear();
        self.tune(&mut wire).await.map_err(|e| of_connect(&e))?;
        self.set(State::Up { wire, nth });
        Ok(())
    }

    /// Subscribes to what is listened to, and to nothing else.
    async fn tune(&self, wire: &mut MultiplexedConnection) -> RedisResult<()> {
        let observed: Vec<String> = locked(&self.observed).iter().map(|o| o.channel.clone()).collect();
        let wanted: BTreeSet<String> = observed.into_iter().chain([self.inbox.channel().to_owned()]).collect();
        wire.subscribe(&wanted).await?;
        let heard = std::mem::replace(&mut *locked(&self.heard), wanted.clone());
        let old: Vec<_> = heard.difference(&wanted).collect();
        if !old.is_empty() {
            wire.unsubscribe(old).await?;
        }
        self.stir(&wanted.difference(&heard).collect::<Vec<_>>());
        Ok(())
    }

    /// Completes when the connection is down. One that is doubted has to answer.
    async fn until_down(&self) {
        loop {
            self.trouble.notified().await;
            let Ok((mut wire, nth)) = self.wire() else { return };
            if let Err(e) = self.tune(&mut wire).await {
                self.fail(nth, of_connect(&e));
                return;
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
        link.until_down().await;
        if link.useful.swap(false, Ordering::Relaxed) {
            pause = PAUSES.0;
        }
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSES.1);
            match link.dial().await {
                Ok(()) => break,
                Err(e) => link.set(State::Down(e)),
            }
        }
        // Pushes may have been missed.
        link.inbox.bells().everyone();
    }
}
