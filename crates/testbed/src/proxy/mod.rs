//! A TCP proxy that breaks connections on purpose.
//!
//! - `mod` has the controls that a test holds.
//! - `control` has the faults that the test wants at the moment, for every task of the proxy.
//! - `trap` waits for one particular request.
//! - `listen` accepts; `connection` carries one connection; `lane` carries one direction of it.

mod connection;
mod control;
mod lane;
mod listen;
mod trap;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::watch;

pub use self::trap::Trap;
use self::{
    control::{Control, Flow, Shared},
    trap::Action,
};
use crate::{
    background::{self, Task},
    error::Result,
    ports,
};

/// A proxy in front of one server.
///
/// A client sends *requests*, the server sends *replies*. A *chunk* is the bytes of one read:
/// usually the bytes that the other side wrote at once, but TCP may join writes or tear them.
///
/// A control that returned is in force for every byte sent after it returned. Dropping the proxy
/// closes everything. Proxies run on threads of their own, so they go on when a test stops its own
/// runtime.
#[derive(Debug)]
pub struct Proxy {
    addr: String,
    shared: Arc<Shared>,
    _accepting: Task,
}

impl Proxy {
    /// Starts a proxy to `upstream` (`host:port`), which need not be there yet.
    pub async fn to(upstream: impl Into<String>) -> Result<Self> {
        let shared = Arc::new(Shared::new(upstream.into()));
        let (listener, addr) = ports::listen()?;
        let accepting = background::spawn(listen::accept(listener, addr, Arc::clone(&shared)))?;
        Ok(Self {
            addr: addr.to_string(),
            shared,
            _accepting: accepting,
        })
    }

    /// The address to which clients connect: `host:port`. It never changes.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// The port clients connect to, on `127.0.0.1`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.addr
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or_default()
    }

    /// Serves new connections by this server (`host:port`). The present ones stay as they are.
    pub fn lead_to(&self, upstream: impl Into<String>) {
        self.shared.lead_to(upstream.into());
    }

    /// Closes all connections and refuses new ones until [`heal`](Self::heal). Returns when all are closed.
    pub async fn cut(&self) {
        self.shared.set(|control| control.sever(true));
        Shared::reaches(&self.shared.listening, |listening| !listening).await;
        Shared::reaches(&self.shared.open, |open| *open == 0).await;
    }

    /// Closes all connections and serves new ones. Returns when all old ones are closed.
    pub async fn disconnect(&self) {
        self.cut().await;
        self.shared.set(|control| control.cut = false);
        Shared::reaches(&self.shared.listening, |listening| *listening).await;
    }

    /// Makes a black hole: connections stay open and new ones are accepted, but nothing arrives in
    /// either direction. Bytes sent meanwhile, and also the end of a connection, are delivered
    /// after [`heal`](Self::heal), unless the client has given up a connection that was new.
    pub fn hold(&self) {
        self.shared.set(|control| {
            control.requests.flow = Flow::Hold;
            control.replies.flow = Flow::Hold;
        });
    }

    /// Makes a black hole for the present connections: nothing of theirs arrives any more in either
    /// direction, and neither side is told. New connections work. [`heal`](Self::heal) delivers the
    /// bytes that were held back.
    pub fn freeze(&self) {
        self.shared
            .set(|control| control.frozen = self.shared.connections.load(Ordering::Relaxed));
    }

    /// Holds replies only, as [`hold`](Self::hold) does for both directions: the server still
    /// executes requests.
    pub fn hold_replies(&self) {
        self.shared.set(|control| control.replies.flow = Flow::Hold);
    }

    /// Throws replies away. A connection that lost some is closed by [`heal`](Self::heal).
    pub fn drop_replies(&self) {
        self.shared.set(|control| control.replies.flow = Flow::Drop);
    }

    /// Delays every chunk in both directions. The order is kept, and many chunks may be under way
    /// at once.
    pub fn delay(&self, delay: Duration) {
        self.shared.set(|control| {
            control.requests.delay = delay;
            control.replies.delay = delay;
        });
    }

    /// Delays replies.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.set(|control| control.replies.delay = delay);
    }

    /// Ends every cut, hold, drop and delay. Returns when new connections are accepted again.
    ///
    /// Traps stay: a request or a reply that a trap holds back waits for
    /// [`deliver_held`](Self::deliver_held).
    pub async fn heal(&self) {
        self.shared.set(|control| {
            *control = Control {
                generation: control.generation,
                ..Control::default()
            }
        });
        Shared::reaches(&self.shared.listening, |listening| *listening).await;
    }

    /// *Request applied, reply lost*: the next request chunk that contains `pattern`, over any
    /// connection, is forwarded. Replies on its connection are thrown away, and the client's
    /// connection is closed once the server has answered.
    ///
    /// The server's side stays open, so that the server does not abandon the request. If requests
    /// are pipelined, replies to earlier ones may be lost with it.
    pub fn lose_reply_matching(&self, pattern: impl AsRef<[u8]>) -> Trap {
        self.shared
            .arm(Trap::new(pattern.as_ref(), Action::LoseReply))
    }

    /// Holds back the next request chunk that contains `pattern`, and all later ones of its
    /// connection, until [`deliver_held`](Self::deliver_held), also if the client closes the
    /// connection meanwhile. Replies pass.
    pub fn hold_matching(&self, pattern: impl AsRef<[u8]>) -> Trap {
        self.shared.arm(Trap::new(pattern.as_ref(), Action::Hold))
    }

    /// Holds back replies, as [`hold_matching`](Self::hold_matching) does requests: the next
    /// request chunk that contains `pattern` is forwarded, and the replies on its connection are
    /// kept.
    pub fn hold_reply_matching(&self, pattern: impl AsRef<[u8]>) -> Trap {
        self.shared
            .arm(Trap::new(pattern.as_ref(), Action::HoldReply))
    }

    /// Ends all traps: held bytes are delivered, and traps that have not sprung will not.
    pub fn disarm(&self) {
        for trap in self.shared.traps().drain(..) {
            trap.release();
            trap.disarm();
        }
    }

    /// Delivers the bytes that [`hold_matching`](Self::hold_matching) or
    /// [`hold_reply_matching`](Self::hold_reply_matching) has held back. If a client has closed
    /// such a connection, the server sees it close after these bytes.
    pub fn deliver_held(&self) {
        self.shared.traps().retain(|trap| !trap.release());
    }

    /// The number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The number of bytes that clients have sent so far, including those that were held back.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.shared.request_bytes.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        *self.shared.open.borrow()
    }

    /// Waits until this number of connections is open.
    pub async fn until_open(&self, connections: usize) {
        Shared::reaches(&self.shared.open, |open| *open == connections).await;
    }

    /// Replaces `from` by `to`, of the same length, in every request chunk.
    pub fn rewrite_requests(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        let from = from.as_ref();
        let to = to.as_ref();
        debug_assert_eq!(from.len(), to.len(), "lengths may be part of the protocol");
        self.shared.rewrite(from, to);
    }
}

impl Shared {
    async fn reaches<T>(state: &watch::Sender<T>, wanted: impl FnMut(&T) -> bool) {
        // The proxy has the sender, so waiting does not fail.
        let _ = state.subscribe().wait_for(wanted).await;
    }
}
