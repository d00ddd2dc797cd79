//! Several connections for requests that stand for themselves: each is one transaction, and needs nothing of the connection before.
//!
//! A pool of our own, since an application's may be full of transactions that wait for these very locks. A request runs on a task: also if its
//! caller leaves, its connection is back when it is answered, or closed at the limit.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Invalid, Unavailable};
use leasehold_core::seam::{Moment, Notifier};
use leasehold_core::support::{Host, locked};
use leasehold_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::client::link::Link;
use crate::client::request::Request;
use crate::config::Server;
use crate::error::Failure;

/// A connection that was not needed for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// So many connections at most.
pub(crate) struct Pool {
    server: Server,
    limit: Duration,
    /// Those that are not in use, the latest last.
    idle: Mutex<Vec<Link>>,
    slots: Semaphore,
    closed: AtomicBool,
    /// No pooler that hands out connections for a while stands between.
    is_direct: AtomicBool,
    runtime: Handle,
    notifier: Notifier,
}

impl Pool {
    /// Without a connection yet. Requests are limited to this long; breaks are told to the notifier.
    pub(crate) fn new(
        server: &Server,
        most: usize,
        limit: Duration,
        runtime: &Handle,
        notifier: &Notifier,
    ) -> Arc<Pool> {
        Arc::new(Pool {
            server: server.clone(),
            limit,
            idle: Mutex::default(),
            slots: Semaphore::new(most),
            closed: AtomicBool::new(false),
            is_direct: AtomicBool::new(false),
            runtime: runtime.clone(),
            notifier: notifier.clone(),
        })
    }

    /// Sends a request, once, and answers within about three times the limit.
    pub(crate) async fn call(self: &Arc<Self>, request: Request) -> Result<Vec<Row>, Failure> {
        let pool = self.clone();
        let task = self.runtime.spawn(async move { pool.run(&request).await });
        task.await.unwrap_or_else(|_| Err(Failure::new(Ambiguous, "the runtime in which it was connected has ended")))
    }

    async fn run(&self, request: &Request) -> Result<Vec<Row>, Failure> {
        let slot = timeout(self.limit, self.slots.acquire()).await;
        let _slot = match slot {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) => return Err(Failure::closed()),
            Err(_) => return Err(Failure::new(Unavailable, "all connections of this client wait for answers")),
        };
        // What was good at first is wrong for a while: a file that is being replaced.
        let link = self.link().await.map_err(|failure| failure.instead_of(Invalid, Unavailable))?;
        let mut answer = if request.is_frequent && self.is_direct.load(Ordering::Acquire) {
            link.ask_again(request, self.limit).await
        } else {
            link.ask(request, self.limit).await
        };
        if answer.as_ref().is_err_and(|failure| failure.unprepared) {
            // Somebody was put between. Nothing was executed.
            self.is_direct.store(false, Ordering::Release);
            answer = link.ask(request, self.limit).await;
        }
        if answer.as_ref().is_err_and(|failure| failure.broken) {
            link.cut();
            self.interrupted();
        } else if !self.closed.load(Ordering::Acquire) {
            let mut idle = locked(&self.idle);
            idle.retain(|link| link.idle() < IDLE);
            idle.push(link);
        }
        answer
    }

    /// A connection that is not in use, or a new one.
    pub(crate) async fn link(&self) -> Result<Link, Failure> {
        loop {
            let Some(link) = locked(&self.idle).pop() else { break };
            if link.is_open() {
                return Ok(link);
            }
            self.interrupted();
        }
        let opened = Link::open(&self.server, self.limit, &self.runtime).await;
        opened.map(|(link, _)| link).map_err(|e| Failure::of(&e))
    }

    /// From now on statements may be prepared: what this connects to is the server itself, or as good.
    pub(crate) fn set_direct(&self) {
        self.is_direct.store(true, Ordering::Release);
    }

    /// Gives back what was taken by `link`.
    pub(crate) fn keep(&self, link: Link) {
        locked(&self.idle).push(link);
    }

    /// A connection broke: the others may be dead as well, and the server may have lost its data.
    fn interrupted(&self) {
        let dead = std::mem::take(&mut *locked(&self.idle));
        drop(dead);
        self.notifier.interrupted(Moment::now());
    }

    /// Refuses requests from now on, and closes what is not in use.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.slots.close();
        locked(&self.idle).clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.server.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}/{}", hosts.join(","), self.server.database)
    }
}

impl Failure {
    fn closed() -> Failure {
        Failure::of(&Error::closed())
    }
}
