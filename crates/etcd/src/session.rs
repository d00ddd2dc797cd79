//! Sessions: one lease for each TTL that is asked for. All places of that TTL live under it, and one request renews them.
//!
//! A grant is valid since the session's last *proven* renewal: the send of the last keep-alive that was answered, or of
//! the grant of the lease. Never since the claim, which extends nothing; nor longer than a TTL after its claim was last asked
//! for or renewed.
//!
//! Each session may have one key, `%session/<lease>`. Once it has, it is closed: no claim is executed in it any more. It is
//! written when a claim is withdrawn of which a request may still be on its way: so no late request can leave a key under a
//! lease that lives on. What stands in a closed session stays, and its lease ends when nothing is left to be renewed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::join_all;
use leasehold_core::seam::{Moment, Renewal, Tenure, Validity, token_of_place};
use leasehold_core::{Error, ErrorKind, Loss, Result};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use crate::error::Failure;
use crate::store::Store;

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lease: i64,
    /// The TTL that was asked for, in seconds.
    pub(crate) asked: u64,
    /// As granted: whole seconds, and not less than the server's minimum.
    pub(crate) ttl: Duration,
    /// The session's key.
    pub(crate) key: String,
    /// Nobody is let in any more: its key was written, or is about to be.
    closed: AtomicBool,
    proven: AtomicU64,
}

impl Session {
    pub(crate) fn new(lease: i64, asked: u64, ttl: Duration, key: String, proven: Moment) -> Session {
        Session { lease, asked, ttl, key, closed: AtomicBool::new(false), proven: AtomicU64::new(proven.as_nanos()) }
    }

    fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
    }

    /// At least half of its lease lies before it.
    fn is_young(&self) -> bool {
        Moment::now().since(self.proven()) <= self.ttl / 2
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// How long something holds that was last asked for at `tended`.
    pub(crate) fn validity(&self, tended: Moment) -> Validity {
        Validity::since(self.proven().min(tended), self.ttl)
    }
}

impl Store {
    /// The turn of whoever is granted a lease, within the longest that one call may take: three attempts.
    pub(crate) async fn turn(&self) -> Result<MutexGuard<'_, ()>, Failure> {
        let turn = timeout(self.cluster.config.limit * 3, self.granting.lock()).await;
        turn.map_err(|_| Failure::new(ErrorKind::Unavailable, "others did not end in time"))
    }

    /// The session for this TTL, with at least half of its lease before it.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        if seconds > LONGEST {
            return Err(Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s"));
        }
        let known = self.state().session(seconds);
        if let Some(session) = known.filter(|session| session.is_young()) {
            return Ok(session);
        }
        // In a task of its own: a lease must not be forgotten because the claim that asked for it was dropped.
        let store = self.clone();
        let renewed = tokio::spawn(async move { store.young_session(seconds).await }).await;
        renewed.unwrap_or_else(|_| Err(Failure::new(ErrorKind::Unavailable, "the runtime ends").into()))
    }

    async fn young_session(self: &Arc<Self>, seconds: u64) -> Result<Arc<Session>> {
        let _turn = self.turn().await?;
        self.open()?;
        let known = self.state().session(seconds);
        if let Some(session) = known {
            if session.is_young() {
                return Ok(session);
            }
            match self.refresh(&session).await {
                Err(failure) if failure.lease_is_gone() => {}
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
        let ttl = Duration::from_secs(granted.ttl().unsigned_abs());
        let session = Arc::new(Session::new(granted.id(), seconds, ttl, self.keys.session(granted.id()), sent));
        let mut state = self.state();
        state.sessions.retain(|other| !other.is_closed() || other.proven() + other.ttl > Moment::now());
        state.sessions.push(session.clone());
        Ok(session)
    }

    /// Renews the lease. One attempt takes less than a sixth of the TTL, after which core begins anew: so the next attempt
    /// goes to the next endpoint.
    async fn refresh(self: &Arc<Self>, session: &Session) -> Result<(), Failure> {
        let limit = (session.ttl / 8).min(self.cluster.config.limit);
        // A fresh stream each time: on one stream, a renewal that hangs in the server holds up all that follow.
        let request = |client: Client| async move {
            let sent = Moment::now();
            client.lease_client().keep_alive(session.lease).await.map(|_| sent)
        };
        let outcome = self.cluster.ask(limit, request).await.outcome.map_err(Failure::of_a_read);
        let sent = self.under(session, outcome)?;
        session.proven.fetch_max(sent.as_nanos(), SeqCst);
        self.lapse(session);
        Ok(())
    }

    /// A lease that is renewed keeps alive what nobody wants any more: what was not claimed or renewed for a whole TTL is
    /// released, and again a TTL later if that failed.
    fn lapse(self: &Arc<Self>, session: &Session) {
        let now = Moment::now();
        for (name, own) in self.state().all() {
            if own.session.lease == session.lease && own.tended + session.ttl <= now {
                (own.tended, own.leaving) = (now, true);
                self.bells.lost(own.id, Loss::Expired);
                let (store, name, id) = (self.clone(), name.clone(), own.id);
                tokio::spawn(async move { store.release(&name, id).await });
            }
        }
    }

    /// This session's lease is no more: so are all places under it.
    pub(crate) fn lose(&self, session: &Session) {
        let ended = self.state().end(session);
        ended.into_iter().for_each(|id| self.bells.lost(id, Loss::Gone));
    }

    /// The outcome of a request that needs this session's lease.
    pub(crate) fn under<T>(&self, session: &Session, outcome: Result<T, Failure>) -> Result<T, Failure> {
        outcome.inspect_err(|failure| {
            if failure.lease_is_gone() {
                self.lose(session)
            }
        })
    }

    pub(crate) async fn renew(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let (now, mut sessions) = (Moment::now(), HashMap::new());
        for Tenure { claim, .. } in tenures {
            if let Some(own) = self.state().own(&claim.name, claim.id) {
                own.tended = now;
                sessions.insert(own.session.lease, own.session.clone());
            }
        }
        let refreshed = join_all(sessions.values().map(|session| self.refresh(session))).await;
        let failed = refreshed.into_iter().find_map(Result::err);
        let failed = failed.unwrap_or_else(|| Failure::new(ErrorKind::Unavailable, "claimed during the renewal"));
        let mut state = self.state();
        let renewal = |Tenure { claim, token, .. }: &Tenure| {
            let known = state.own(&claim.name, claim.id).filter(|own| own.created != 0);
            match known.filter(|own| token.is_none_or(|held| held == token_of_place(own.created))) {
                None => Renewal::Lost(Loss::Gone),
                Some(own) if own.session.proven() < now => Renewal::Unknown(failed.clone().into()),
                Some(own) if own.granted && token.is_none() => Renewal::Granted(own.grant()),
                Some(own) => Renewal::Renewed(own.validity()),
            }
        };
        tenures.iter().map(renewal).collect()
    }
}
