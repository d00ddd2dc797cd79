//! One connection that is made again for as long as the store lives.
//!
//! The client crate reconnects never (`MultiplexedConnection`) or gives up (`ConnectionManager`),
//! and neither notices a link that is dead but open. Here work in the background waits until a repair
//! is due: after a broken socket, a refusal by a server that may not write, or a request that is
//! not answered soon. A suspect connection has to answer before another one is made: the first of
//! the two is used from then on, and requests in flight on a connection end with it. Callers get a
//! connection, or an error at once.

mod endpoint;
mod first_words;
mod link;
mod open;
mod plain;
mod repair;
#[cfg(feature = "tls-no-provider")]
mod secure;
mod sentinel;

use std::fmt;
use std::pin::{Pin, pin};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use leasehold_core::backend::Subscription;
use leasehold_core::support::{Background, Signal, locked};
use leasehold_core::{Error, ErrorKind, Name, Result};
use leasehold_net::Verified;
use redis::{Cmd, Pipeline, RedisResult, Value, from_redis_value};
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::link::connection::link::{Link, Observed, State, Wire};
use crate::link::connection::repair::keep;
use crate::link::connection::sentinel::ServerSource;
use crate::link::error::{again, junk, of_request};
use crate::link::inbox::Inbox;
use crate::link::server::{Protocol, Server};

/// After this part of its limit an unanswered request makes its connection suspect.
const SLOW: u32 = 4;

/// The store's connection: a handle to the state, and to the work that repairs it. It lives in the
/// runtime in which it was made; if that one ends or is not driven any more, another one that uses
/// it makes it anew.
pub(crate) struct Connection {
    link: Arc<Link>,
    /// Repairs the connection, in any runtime that uses it.
    repair: Background,
}

impl Connection {
    /// A connection that is not made yet. Each request may block those behind it for the time
    /// `waits`, beyond the time-out.
    pub(crate) fn new(
        server: Server,
        timeout: Duration,
        waits: Duration,
        inbox: &Inbox,
    ) -> Result<Connection> {
        Handle::try_current().map_err(|_| {
            Error::new(
                ErrorKind::NoRuntime,
                "a store on Redis connects only inside a tokio runtime",
            )
        })?;
        let home = ServerSource::of(server.info, server.sentinels, server.credentials)?;
        let address = home.address();
        let down = State::Down(Error::new(
            ErrorKind::Unavailable,
            format!("{address}: not connected yet"),
        ));
        let link = Arc::new(Link {
            home,
            tls: server.tls,
            cluster: server.cluster,
            admission: server.admission,
            mark: server.mark,
            protocol: server.protocol.unwrap_or(Protocol::Resp3),
            spoken: OnceLock::new(),
            address,
            timeout: timeout + waits,
            waits,
            inbox: inbox.clone(),
            state: RwLock::new(down),
            repair_due: Signal::default(),
            heard: Mutex::default(),
            relocated: Signal::default(),
            led_to: Mutex::default(),
            useful: AtomicBool::new(true),
            made: AtomicU64::new(0),
            observed: Mutex::default(),
        });
        let kept = link.clone();
        let repair = Background::new(move |anew| {
            if anew {
                // The connection lives in a runtime that has ended or is not driven.
                kept.repair_due.notify();
            }
            keep(kept.clone())
        });
        repair.here();
        Ok(Connection { link, repair })
    }

    /// Makes the connection for the first time. After a failure it is tried again in the
    /// background.
    pub(crate) async fn connect(&self) -> Result<()> {
        let made = self.link.connect().await;
        if let Err(e) = &made {
            self.link.set(State::Down(again(e)));
            self.link.repair_due.notify();
        }
        made
    }

    /// The server's address, for people.
    pub(crate) fn address(&self) -> &str {
        &self.link.address
    }

    /// Returns whether the server pushes. Over RESP2 it does not, and knows only the commands of
    /// locks.
    pub(crate) fn has_pushes(&self) -> bool {
        self.link.has_pushes()
    }

    /// Returns whether the server refused RESP3, so that RESP2 is spoken.
    pub(crate) fn fell_back(&self) -> bool {
        !self.link.has_pushes() && self.link.protocol == Protocol::Either
    }

    /// The answers of `INFO` about these sections, over a connection without pushes. An answer that
    /// the server does not give is empty.
    pub(crate) async fn info(&self, sections: &[&str]) -> Result<Vec<String>> {
        let question = plain::info(&self.link.probed(), sections);
        let answer = self.refusal(self.send_one(None, &question).await?)?;
        from_redis_value(answer).map_err(|_| junk("INFO"))
    }

    /// One step of a walk over all keys, by these words of `SCAN`.
    pub(crate) async fn scan(&self, words: &[&str]) -> Result<Value> {
        let request = if self.has_pushes() {
            let mut scan = redis::cmd("SCAN");
            scan.arg(words);
            scan
        } else {
            plain::scan(&self.link.probed(), words)
        };
        self.refusal(self.send_one(None, &request).await?)
    }

    /// Returns whether sentinels tell the place of the server.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.link.home.moves()
    }

    /// Returns whether the server is a node of a Cluster.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.link.cluster
    }

    /// Returns whether the connection is over TLS to a server of which nothing is verified.
    pub(crate) fn is_unverified(&self) -> bool {
        let tls = self.link.tls.as_ref();
        tls.is_some_and(|tls| tls.verified() == Verified::Nothing)
    }

    /// The number of the current connection.
    pub(crate) fn nth(&self) -> Result<u64> {
        self.wire().map(|wire| wire.nth)
    }

    /// Identifies the server that the connection leads to now. Another server has another text,
    /// also at an equal address: after a restart, or behind a name. For a user without the right to
    /// ask the server (`INFO`) the text is its address alone.
    pub(crate) fn server(&self) -> Result<Arc<str>> {
        self.wire().map(|wire| wire.server.clone())
    }

    /// The identity of the server of the connection of this number, if it is the current one.
    pub(crate) fn server_of(&self, nth: u64) -> Result<Arc<str>> {
        self.wire_of(Some(nth)).map(|wire| wire.server.clone())
    }

    /// Sends several requests together. A refusal by the server is a [`Value::ServerError`] among the answers.
    pub(crate) async fn send(&self, requests: &Pipeline) -> Result<Vec<Value>> {
        self.send_many(None, requests).await
    }

    /// Sends several requests together over the connection of this number, or not at all.
    pub(crate) async fn send_over(&self, nth: u64, requests: &Pipeline) -> Result<Vec<Value>> {
        self.send_many(Some(nth), requests).await
    }

    pub(crate) async fn send_many(
        &self,
        over: Option<u64>,
        requests: &Pipeline,
    ) -> Result<Vec<Value>> {
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

    /// Awaits the answer to a request over this connection. The caller pins the future, since it is
    /// large.
    async fn answered<T>(
        &self,
        wire: &Wire,
        asked: Pin<&mut impl Future<Output = RedisResult<T>>>,
        each: impl FnOnce(&T) -> &[Value],
    ) -> Result<T> {
        let link = &self.link;
        // Without an answer the request leaves the connection suspect, also if it is dropped by a
        // time limit or by the caller.
        let unanswered = guard((), |()| link.repair_due.notify());
        let slow = async {
            let suspect = link.waits + link.timeout / SLOW;
            let limit = link.timeout;
            sleep(suspect).await;
            link.repair_due.notify();
            drop(timeout(limit.saturating_sub(suspect), wire.ended()).await);
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

    /// Turns a refusal by the server into an error in our words.
    pub(crate) fn refusal(&self, answer: Value) -> Result<Value> {
        answer
            .extract_error()
            .map_err(|e| self.link.at(&of_request(&e)))
    }

    /// Adds the server's address to an error.
    pub(crate) fn at(&self, e: &Error) -> Error {
        self.link.at(e)
    }

    /// Returns whether this name is observed, and its changes are heard of.
    pub(crate) fn observes(&self, name: &Name) -> bool {
        if !self.has_pushes() {
            return false;
        }
        locked(&self.link.observed)
            .iter()
            .any(|observed| observed.name == *name)
    }

    /// Notifies of this name whenever something is published in this channel, until the subscription is dropped.
    /// Over RESP2 it never does.
    pub(crate) fn observe(&self, name: &Name, channel: String) -> Subscription {
        if !self.has_pushes() {
            return Subscription::none();
        }
        let link = self.link.clone();
        let observed = Arc::new(Observed {
            channel,
            name: name.clone(),
        });
        locked(&link.observed).push(observed.clone());
        link.repair_due.notify();
        Subscription::new(guard((), move |()| {
            locked(&link.observed).retain(|other| !Arc::ptr_eq(other, &observed));
            link.repair_due.notify();
        }))
    }

    /// Ends the connection of this number, if it is the current one: its server may not be used.
    pub(crate) fn refuse(&self, nth: u64, why: &Error) {
        self.link.fail(nth, self.link.at(why));
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        *self.link.state_mut() = State::Closed;
        self.repair.end();
    }

    /// The current connection. If a number is given, it has to be the connection's.
    fn wire_of(&self, over: Option<u64>) -> Result<Arc<Wire>> {
        let wire = self.wire()?;
        if over.is_some_and(|nth| nth != wire.nth) {
            let what = "the connection to Redis was replaced before the request was sent";
            return Err(self.link.at(&Error::new(ErrorKind::Unavailable, what)));
        }
        Ok(wire)
    }

    /// The current connection. The caller's runtime repairs it from now on if no other does.
    fn wire(&self) -> Result<Arc<Wire>> {
        self.repair.here();
        self.link.wire()
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
