//! Sessions: one lease for each TTL that is asked for. All keys of that TTL live under it, and one request renews them.
//!
//! What is under a session lives since its last *proven* renewal: the send of the last keep-alive that was answered, or of
//! the grant of the lease. Never since a key was written, which extends nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::join_all;
use leasehold_core::seam::{Moment, Validity};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::cluster::{ATTEMPTS, Cluster};
use crate::error::Failure;

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;

/// One lease.
#[derive(Debug)]
pub struct Session {
    pub(crate) lease: i64,
    /// The TTL that was asked for, in seconds.
    asked: u64,
    /// As granted: whole seconds, and not less than the server's minimum.
    ttl: Duration,
    /// The session's own key, which closes it: see `key`.
    pub(crate) key: String,
    /// Its key was written, or is about to be.
    pub(crate) closed: AtomicBool,
    proven: AtomicU64,
}

impl Session {
    /// A session whose lease was asked for at `proven`.
    pub fn new(lease: i64, asked: u64, ttl: Duration, key: String, proven: Moment) -> Session {
        Session { lease, asked, ttl, key, closed: AtomicBool::new(false), proven: AtomicU64::new(proven.as_nanos()) }
    }

    /// The lease's number.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// When it surely lived.
    pub fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
    }

    /// No key is created under it any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// When what was last asked for at `tended` would have ended, if its lease were its own.
    pub fn end_of(&self, tended: Moment) -> Moment {
        tended + self.ttl
    }

    /// How long something holds that was last asked for at `tended`.
    pub fn validity(&self, tended: Moment) -> Validity {
        Validity::since(self.proven().min(tended), self.ttl)
    }

    /// At least half of its lease lies before it.
    fn is_young(&self) -> bool {
        Moment::now().since(self.proven()) <= self.ttl / 2
    }
}

/// Whoever has keys under sessions, and is told what becomes of them. Neither may wait.
pub trait Tenants: Send + Sync {
    /// The lease was renewed, and so is all that is under it.
    fn renewed(self: Arc<Self>, session: &Session);

    /// The lease is no more, and nothing that was under it.
    fn ended(&self, session: &Session);
}

/// The sessions of one client.
pub struct Sessions {
    pub(crate) cluster: Arc<Cluster>,
    tenants: Weak<dyn Tenants>,
    /// Leases are granted one by one.
    granting: tokio::sync::Mutex<()>,
    live: Mutex<Vec<Arc<Session>>>,
}

impl Sessions {
    /// None yet.
    pub fn new(cluster: Arc<Cluster>, tenants: Weak<dyn Tenants>) -> Arc<Sessions> {
        Arc::new(Sessions { cluster, tenants, granting: tokio::sync::Mutex::default(), live: Mutex::default() })
    }

    /// The session for this TTL, with at least half of its lease before it.
    pub async fn get(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        if seconds > LONGEST {
            return Err(Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s"));
        }
        if let Some(session) = self.known(seconds).filter(|session| session.is_young()) {
            return Ok(session);
        }
        // In a task of its own: a lease must not be forgotten because whoever asked for it is gone.
        let sessions = self.clone();
        let young = tokio::spawn(async move { sessions.young(seconds).await }).await;
        young.unwrap_or_else(|_| Err(Failure::new(ErrorKind::Unavailable, "the runtime ends").into()))
    }

    async fn young(&self, seconds: u64) -> Result<Arc<Session>> {
        // Within the longest that one call may take.
        let turn = timeout(self.cluster.config.limit * ATTEMPTS, self.granting.lock()).await;
        let _turn = turn.map_err(|_| Failure::new(ErrorKind::Unavailable, "others did not end in time"))?;
        self.cluster.open()?;
        if let Some(session) = self.known(seconds) {
            if session.is_young() {
                return Ok(session);
            }
            match self.renew(&session).await {
                Err(failure) if failure.is(ErrorKind::Lost) => {}
                outcome => return Ok(outcome.map(|()| session)?),
            }
        }
        let request = |client: Client| async move {
            let sent = Moment::now();
            let granted = client.lease_client().grant(seconds.max(1).cast_signed(), None).await?;
            Ok((sent, granted))
        };
        // A lease whose grant was not answered ends by itself: nothing is under it.
        let answer = self.cluster.ask(self.cluster.config.limit, request).await;
        let (sent, granted) = answer.outcome.map_err(Failure::of_a_read)?;
        let (lease, ttl) = (granted.id(), Duration::from_secs(granted.ttl().unsigned_abs()));
        let session = Arc::new(Session::new(lease, seconds, ttl, self.cluster.session_key(lease), sent));
        let mut live = self.live();
        live.retain(|other| !other.is_closed() || other.end_of(other.proven()) > Moment::now());
        live.push(session.clone());
        Ok(session)
    }

    /// Renews the lease. One attempt takes less than a sixth of the TTL, after which core begins anew: so the next attempt
    /// goes to the next endpoint.
    pub async fn renew(&self, session: &Session) -> Result<(), Failure> {
        let limit = (session.ttl / 8).min(self.cluster.config.limit);
        // A fresh stream each time: on one stream, a renewal that hangs in the server holds up all that follow.
        let request = |client: Client| async move {
            let sent = Moment::now();
            client.lease_client().keep_alive(session.lease).await.map(|_| sent)
        };
        let outcome = self.cluster.ask(limit, request).await.outcome.map_err(Failure::of_a_read);
        let sent = self.under(session, outcome)?;
        session.proven.fetch_max(sent.as_nanos(), SeqCst);
        if let Some(tenants) = self.tenants.upgrade() {
            tenants.renewed(session);
        }
        Ok(())
    }

    /// The outcome of a request that needs this session's lease.
    pub fn under<T>(&self, session: &Session, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| failure.is(ErrorKind::Lost)) {
            self.end(session);
        }
        outcome
    }

    /// Ends all of them, and all that is under them. Nothing new begins from here on.
    pub async fn close(&self) -> Result<()> {
        self.cluster.shut();
        // Whoever is about to be granted a lease comes first, and is ended too.
        let _turn = timeout(self.cluster.config.limit * ATTEMPTS, self.granting.lock()).await;
        let live = self.live().clone();
        let revocations = live.iter().map(|session| async move {
            let request = |client: Client| async move { client.lease_client().revoke(session.lease).await };
            match self.cluster.ask(self.cluster.config.limit, request).await.outcome {
                Err(failure) if !failure.is(ErrorKind::Lost) => return Err(Error::from(failure)),
                _ => self.end(session),
            }
            Ok(())
        });
        join_all(revocations).await.into_iter().collect()
    }

    fn end(&self, session: &Session) {
        self.live().retain(|other| other.lease != session.lease);
        if let Some(tenants) = self.tenants.upgrade() {
            tenants.ended(session);
        }
    }

    /// The session for this TTL, in seconds, if keys may be created under it.
    fn known(&self, asked: u64) -> Option<Arc<Session>> {
        self.live().iter().find(|session| session.asked == asked && !session.is_closed()).cloned()
    }

    fn live(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.live().iter()).finish()
    }
}
