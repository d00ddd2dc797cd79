//! Sessions: leases, one for each TTL that is asked for. All keys of that TTL live under it, and one request renews them.
//!
//! What is under a session lives since its last *proven* renewal: the send of the last keep-alive that was answered, or of
//! the grant of the lease. Never since a key was written, which extends nothing. A session with keys is
//! renewed by whoever has them, and by nobody else: what is abandoned lives no longer because others come. After half of a
//! lease, newcomers get another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::join_all;
use leasehold_core::seam::{Moment, locked};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::cluster::{ATTEMPTS, Cluster};
use crate::error::Failure;

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;

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
}

impl Session {
    /// A session whose lease was asked for at `proven`.
    pub fn new(lease: i64, asked: u64, ttl: Duration, key: String, proven: Moment) -> Session {
        Session { lease, asked, ttl, key, closed: AtomicBool::new(false), proven: AtomicU64::new(proven.as_nanos()) }
    }

    /// Since when it surely lives.
    pub fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
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
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        if seconds > LONGEST {
            return Err(Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s"));
        }
        if let Some(young) = self.find_session(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        // In a task of its own: a lease must not be forgotten because whoever asked for it is gone.
        let cluster = self.clone();
        let granted = tokio::spawn(async move { cluster.grant(seconds).await }).await;
        granted.unwrap_or_else(|_| Err(Failure::new(ErrorKind::Unavailable, "the runtime ends").into()))
    }

    async fn grant(&self, seconds: u64) -> Result<Arc<Session>> {
        let _turn = self.turn().await?;
        self.open()?;
        if let Some(young) = self.find_session(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        if let Some(idle) = self.find_session(seconds, |session| Arc::strong_count(session) == 1) {
            match self.renew(&idle).await {
                Err(failure) if failure.is(ErrorKind::Lost) => idle.close(),
                renewed => return Ok(renewed.map(|()| idle)?),
            }
        }
        let request = |client: Client| async move {
            let sent = Moment::now();
            let granted = client.lease_client().grant(seconds.max(1).cast_signed(), None).await?;
            Ok((sent, granted))
        };
        // A lease whose grant was not answered ends by itself: nothing is under it.
        let answer = self.ask(self.config.limit, request).await;
        let (sent, granted) = answer.outcome.map_err(Failure::of_a_read)?;
        let (lease, ttl) = (granted.id(), Duration::from_secs(granted.ttl().unsigned_abs()));
        let session = Arc::new(Session::new(lease, seconds, ttl, self.session_key(lease), sent));
        let mut sessions = self.sessions();
        // Nothing is left under the others, and soon not even their leases.
        sessions.retain(|other| Arc::strong_count(other) > 1 || other.proven() + other.ttl > Moment::now());
        sessions.push(session.clone());
        Ok(session)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        locked(&self.sessions)
    }

    /// One for this TTL, in seconds, under which keys may be created, and which is fit.
    fn find_session(&self, asked: u64, fit: impl Fn(&Arc<Session>) -> bool) -> Option<Arc<Session>> {
        let found = |session: &&Arc<Session>| session.asked == asked && !session.is_closed() && fit(session);
        self.sessions().iter().find(found).cloned()
    }

    /// The turn of whoever is granted a lease, within the longest that one call may take.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Failure> {
        let turn = timeout(self.config.limit * ATTEMPTS, self.granting.lock()).await;
        turn.map_err(|_| Failure::new(ErrorKind::Unavailable, "others did not end in time"))
    }

    /// Renews the lease. One attempt takes less than a sixth of the TTL, after which core begins anew: so the next attempt
    /// goes to the next endpoint.
    pub async fn renew(&self, session: &Session) -> Result<(), Failure> {
        let limit = (session.ttl / 8).min(self.config.limit);
        // A fresh stream each time: on one stream, a renewal that hangs in the server holds up all that follow.
        let request = |client: Client| async move {
            let sent = Moment::now();
            client.lease_client().keep_alive(session.lease).await.map(|_| sent)
        };
        let sent = self.ask(limit, request).await.outcome.map_err(Failure::of_a_read)?;
        session.proven.fetch_max(sent.as_nanos(), SeqCst);
        Ok(())
    }

    /// Ends all sessions, and tells which. Nothing new begins from here on.
    pub async fn close(&self, ended: impl Fn(&Session)) -> Result<()> {
        self.shut();
        // Whoever is about to be granted a lease comes first, and is ended too.
        let _turn = self.turn().await;
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
