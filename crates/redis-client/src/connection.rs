//! One connection that is made again for as long as the store lives.
//!
//! The client crate reconnects never (`MultiplexedConnection`) or gives up (`ConnectionManager`), and neither notices a
//! link that is dead but open. Here one task per store waits until a repair is due: after a broken socket, a refusal by a server
//! that may not write, or a request that is not answered soon. A suspect connection has to answer before another one is made:
//! the first of the two is used from then on, and what is in flight on a connection ends with it. Callers see a connection, or
//! an error at once.

mod driver;
mod link;
mod peer;
mod repair;
#[cfg(feature = "tls")]
mod secure;
mod sentinel;

use std::fmt;
use std::pin::{Pin, pin};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use leasehold_core::seam::Subscription;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, RedisResult, Value};
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::connection::link::{Link, Observed, State, Wire};
use crate::connection::repair::keep;
use crate::connection::sentinel::Home;
use crate::error::{again, of_request};
use crate::inbox::Inbox;
use crate::server::Server;

/// After this part of its limit an unanswered request makes its connection suspect.
const SLOW: u32 = 4;

/// The store's connection: a handle to the state, and to the task that repairs it.
pub struct Connection {
    link: Arc<Link>,
    repair: Mutex<AbortHandle>,
}

impl Connection {
    /// One that is not made yet. Its requests may each block those behind them for so long as `waits` says, beyond the time-out.
    pub fn new(server: Server, timeout: Duration, waits: Duration, inbox: &Inbox) -> Result<Connection> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Unsupported, "a store on Redis connects only inside a tokio runtime"))?;
        let home = Home::of(server.info, server.sentinels, server.credentials)?;
        let address = home.address();
        let down = State::Down(Error::new(ErrorKind::Unavailable, format!("{address}: not connected yet")));
        let link = Arc::new(Link {
            home,
            #[cfg(feature = "tls")]
            tls: server.tls,
            cluster: server.cluster,
            address,
            timeout: timeout + waits,
            waits,
            inbox: inbox.clone(),
            state: RwLock::new(down),
            repair_due: Notify::new(),
            heard: Mutex::default(),
            relocated: Notify::new(),
            led_to: Mutex::default(),
            useful: AtomicBool::new(true),
            made: AtomicU64::new(0),
            observed: Mutex::default(),
        });
        let repair = Mutex::new(runtime.spawn(keep(link.clone())).abort_handle());
        Ok(Connection { link, repair })
    }

    /// Makes it for the first time. If that fails, it is tried again in the background all the same.
    pub async fn connect(&self) -> Result<()> {
        let made = self.link.connect().await;
        if let Err(e) = &made {
            self.link.set(State::Down(again(e)));
            self.link.repair_due.notify_one();
        }
        made
    }

    /// Another connection to the same server, on which it says what is published.
    pub(crate) async fn listener(&self) -> Result<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
        self.link.listener().await
    }

    /// The server's address, for people.
    pub fn address(&self) -> &str {
        &self.link.address
    }

    /// Whether sentinels say where the server is.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.link.home.moves()
    }

    /// Whether the server is a node of a Cluster.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.link.cluster
    }

    /// The number of the connection that is used now.
    pub fn nth(&self) -> Result<u64> {
        self.wire().map(|wire| wire.nth)
    }

    /// Which server the connection leads to now. Another one has another text, also at the same address: after a restart, or behind a
    /// name. A user who may not ask it (`INFO`) sees that by its address alone.
    pub fn server(&self) -> Result<Arc<str>> {
        self.wire().map(|wire| wire.server.clone())
    }

    /// Where the connection of this number leads, if it is still used.
    pub fn leads_to(&self, nth: u64) -> Result<String> {
        self.wire_of(Some(nth)).map(|wire| wire.at.address.clone())
    }

    /// Sends several requests together. A refusal by the server is a [`Value::ServerError`] among the answers.
    pub async fn send(&self, requests: &Pipeline) -> Result<Vec<Value>> {
        self.send_many(None, requests).await
    }

    /// The same, over the connection of this number or not at all.
    pub async fn send_over(&self, nth: u64, requests: &Pipeline) -> Result<Vec<Value>> {
        self.send_many(Some(nth), requests).await
    }

    pub(crate) async fn send_many(&self, over: Option<u64>, requests: &Pipeline) -> Result<Vec<Value>> {
        let wire = self.wire_of(over)?;
        let mut connection = wire.connection.clone();
        let asked = pin!(connection.send_packed_commands(requests, 0, requests.len()));
        self.answered(&wire, asked, Vec::as_slice).await
    }

    /// Sends one request, over the connection of this number or not at all.
    pub(crate) async fn send_one(&self, over: Option<u64>, request: &Cmd) -> Result<Value> {
        let wire = self.wire_of(over)?;
        let mut connection = wire.connection.clone();
        let asked = pin!(connection.send_packed_command(request));
        self.answered(&wire, asked, slice::from_ref).await
    }

    /// Awaits what was asked over this connection. It is pinned where it is made, since it is large.
    async fn answered<T>(
        &self,
        wire: &Wire,
        asked: Pin<&mut impl Future<Output = RedisResult<T>>>,
        each: impl FnOnce(&T) -> &[Value],
    ) -> Result<T> {
        let link = &self.link;
        // Until it is answered, it leaves the connection suspect: also if it is dropped, by a limit of ours or by the caller.
        let unanswered = guard((), |()| link.repair_due.notify_one());
        let _under_way = wire.under_way();
        let slow = async {
            let (suspect, limit) = (link.waits + link.timeout / SLOW, link.timeout);
            sleep(suspect).await;
            wire.hurry();
            link.repair_due.notify_one();
            sleep(limit.saturating_sub(suspect)).await;
        };
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            () = slow => return Err(link.at(&Error::new(ErrorKind::Ambiguous, LATE))),
        };
        if answer.is_ok() {
            ScopeGuard::into_inner(unanswered);
        }
        link.note_answers(wire, answer.as_ref().map(each));
        answer.map_err(|e| link.at(&of_request(&e)))
    }

    /// What the server refused, in our words.
    pub fn refusal(&self, answer: Value) -> Result<Value> {
        answer.extract_error().map_err(|e| self.link.at(&of_request(&e)))
    }

    /// Whether this name is observed.
    pub fn observes(&self, name: &Name) -> bool {
        locked(&self.link.observed).iter().any(|observed| observed.name == *name)
    }

    /// Notifies of this name whenever something is published in this channel, until the subscription is dropped.
    pub fn observe(&self, name: &Name, channel: String) -> Subscription {
        let (link, observed) = (self.link.clone(), Arc::new(Observed { channel, name: name.clone() }));
        locked(&link.observed).push(observed.clone());
        link.repair_due.notify_one();
        Subscription::new(guard((), move |()| {
            locked(&link.observed).retain(|other| !Arc::ptr_eq(other, &observed));
            link.repair_due.notify_one();
        }))
    }

    /// Ends the connection for good.
    pub fn close(&self) {
        *self.link.state_mut() = State::Closed;
        locked(&self.repair).abort();
    }

    /// The connection, which has this number if one is given.
    fn wire_of(&self, over: Option<u64>) -> Result<Arc<Wire>> {
        let wire = self.wire()?;
        if over.is_some_and(|nth| nth != wire.nth) {
            let what = "the connection to Redis was replaced before the request was sent";
            return Err(self.link.at(&Error::new(ErrorKind::Unavailable, what)));
        }
        Ok(wire)
    }

    /// The connection. Where there is none because the runtime ended in which it was repaired, the caller's takes over.
    fn wire(&self) -> Result<Arc<Wire>> {
        let wire = self.link.wire();
        if let Err(e) = &wire
            && e.kind() != ErrorKind::Closed
            && let mut task = locked(&self.repair)
            && task.is_finished()
            && let Ok(runtime) = Handle::try_current()
        {
            self.link.repair_due.notify_one();
            *task = runtime.spawn(keep(self.link.clone())).abort_handle();
        }
        wire
    }
}

const LATE: &str = "Redis did not answer in time";

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.link.address)?;
        match &*self.link.state() {
            State::Up(_) => f.write_str("connected"),
            State::Down(e) => write!(f, "not connected: {e}"),
            State::Closed => f.write_str("closed"),
        }
    }
}
