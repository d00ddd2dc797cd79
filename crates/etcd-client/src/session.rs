//! Sessions: leases, one for each TTL that is asked for. All keys of that TTL live under it, and one request renews them.
//!
//! What is under a session lives since its last *proven* renewal: the send of the last keep-alive that surely counted (see
//! `proof`), or of the grant of the lease. Never since a key was written, which extends nothing. A session with keys is
//! renewed by whoever has them, and by nobody else: what is abandoned lives no longer because others come. After half of a
//! lease, newcomers get another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::join_all;
use leasehold_core::seam::{Moment, locked};
use leasehold_core::{Error, ErrorKind, Result};

use crate::cluster::{ATTEMPTS, Cluster};
use crate::error::Failure;
use crate::proof::Beats;

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;
/// A grant that takes longer than so many requests may is passed by: its runtime may be driven no more. Should it come after
/// all, it is used like any other, or ends by itself.
const GRANT: u32 = 2 * ATTEMPTS;

/// One lease.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub lease: i64,
    /// The TTL that was asked for, in seconds.
    asked: u64,
    /// As granted: whole seconds, and not less than the server's minimum.
    pub ttl: Duration,
    /// The session's own key, which closes it: see `key`.
    pub(crate) key: String,
    closed: AtomicBool,
    proven: AtomicU64,
    /// The stream of its keep-alives, unless one is on its way.
    pub(crate) beats: Mutex<Option<Beats>>,
}

impl Session {
    /// A session whose lease was asked for at `proven`.
    pub fn new(lease: i64, asked: u64, ttl: Duration, key: String, proven: Moment) -> Session {
        let (closed, proven) = (AtomicBool::new(false), AtomicU64::new(proven.as_nanos()));
        Session { lease, asked, ttl, key, closed, proven, beats: Mutex::default() }
    }

    /// Since when it surely lives.
    pub fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
    }

    /// It lived then.
    pub(crate) fn lived(&self, at: Moment) {
        self.proven.fetch_max(at.as_nanos(), SeqCst);
    }

    /// At least half of its lease lies before it.
    fn is_young(&self) -> bool {
        Moment::now().since(self.proven()) <= self.ttl / 2
    }

    /// No key is created under it from here on: its own key is about to be written, or its lease is no more.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Whether no key is created under it any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

impl Cluster {
    /// A session for this TTL, with at least half of its lease before it.
    pub async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = seconds(ttl)?;
        if let Some(young) = self.find_session(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        self.open()?;
        let grant = || {
            let cluster = self.clone();
            async move { cluster.grant(seconds).await }
        };
        let late = || Err(Failure::new(ErrorKind::Unavailable, "no lease was granted in time"));
        let granted = self.granting.join(seconds, self.config.limit * GRANT, grant).await.unwrap_or_else(late);
        // Whoever closed the client meanwhile may have looked for sessions before.
        self.open()?;
        Ok(granted?)
    }

    async fn grant(&self, seconds: u64) -> Result<Arc<Session>, Failure> {
        if let Some(young) = self.find_session(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        if let Some(idle) = self.find_session(seconds, |session| Arc::strong_count(session) == 1) {
            match self.prove(&idle, &[]).await {
                Err(failure) if failure.is(ErrorKind::Lost) => idle.close(),
                Err(failure) => return Err(failure),
                Ok(_) if idle.is_young() => return Ok(idle),
                Ok(_) => {}
            }
        }
        let (sent, lease, ttl) = self.lease(seconds).await?;
        let session = Arc::new(Session::new(lease, seconds, ttl, self.session_key(lease), sent));
        let mut sessions = self.sessions();
        // Nothing is left under the others, and soon not even their leases.
        sessions.retain(|other| Arc::strong_count(other) > 1 || other.proven() + other.ttl > Moment::now());
        sessions.push(session.clone());
        Ok(session)
    }

    /// A lease of so many seconds: when it was asked for, its number, and what was granted.
    async fn lease(&self, seconds: u64) -> Result<(Moment, i64, Duration), Failure> {
        let request = |client: Client| async move {
            let sent = Moment::now();
            let granted = client.lease_client().grant(seconds.max(1).cast_signed(), None).await?;
            Ok((sent, granted.id(), Duration::from_secs(granted.ttl().unsigned_abs())))
        };
        // A lease whose grant was not answered ends by itself: nothing is under it.
        self.ask(self.config.limit, request).await.outcome.map_err(Failure::of_a_read)
    }

    /// A lease that nobody renews, for what is to outlive this client by so long: its number, and when it has surely ended
    /// unless the leader changes.
    pub async fn last_lease(&self, rest: Duration) -> Result<(i64, Moment)> {
        let (_, lease, ttl) = self.lease(seconds(rest)?).await?;
        Ok((lease, Moment::now() + ttl))
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        locked(&self.sessions)
    }

    /// One for this TTL, in seconds, under which keys may be created, and which is fit.
    fn find_session(&self, asked: u64, fit: impl Fn(&Arc<Session>) -> bool) -> Option<Arc<Session>> {
        let found = |session: &&Arc<Session>| session.asked == asked && !session.is_closed() && fit(session);
        self.sessions().iter().find(found).cloned()
    }

    /// Ends all sessions, and tells which. Nothing new begins from here on.
    pub async fn close(&self, ended: impl Fn(&Session)) -> Result<()> {
        self.shut();
        // Whoever is about to be granted a lease comes first, and is ended too.
        self.granting.settle(self.config.limit * GRANT).await;
        let (sessions, ended) = (self.sessions().clone(), &ended);
        let revocations = sessions.iter().map(|session| async move {
            let request = |client: Client| async move { client.lease_client().revoke(session.lease).await };
            match self.ask(self.config.limit, request).await.outcome {
                Err(failure) if !failure.is(ErrorKind::Lost) => return Err(Error::from(failure)),
                _ => ended(session),
            }
            Ok(())
        });
        join_all(revocations).await.into_iter().collect()
    }
}

/// What etcd is asked for: whole seconds, rounded up.
fn seconds(ttl: Duration) -> Result<u64> {
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    let long = || Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s");
    if seconds > LONGEST { Err(long()) } else { Ok(seconds) }
}
