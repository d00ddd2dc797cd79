//! Sessions: one lease for each TTL that is asked for. All places of that TTL live under it, and one request renews them.
//!
//! A grant is valid since the session's last *proven* renewal: the send of the last keep-alive that was answered, or of
//! the grant of the lease. Never since the claim, which extends nothing.
//!
//! Each session has one key, `%session/<lease>`, written only when needed: its version is the session's *epoch*. A claim is
//! executed only in the epoch it was sent in; a withdrawal begins a new one. So no late request of a withdrawn claim can
//! leave a key under a lease that lives on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use etcd_client::{Client, GetResponse, KeyValue};
use futures_util::future::join_all;
use leasehold_core::seam::{Moment, Renewal, Tenure, Validity};
use leasehold_core::{Error, ErrorKind, Loss, Result};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::error::Failure;
use crate::store::Store;
use crate::table::token;

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lease: i64,
    /// As granted: whole seconds, and not less than the server's minimum.
    pub(crate) ttl: Duration,
    /// The session's key.
    pub(crate) key: String,
    pub(crate) epoch: AtomicI64,
    proven: AtomicU64,
    /// Withdrawals go one by one: each begins an epoch, and would make the others try again.
    pub(crate) withdrawing: Mutex<()>,
}

impl Session {
    fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
    }

    /// At least half of its lease lies before it.
    fn is_young(&self) -> bool {
        Moment::now().since(self.proven()) <= self.ttl / 2
    }

    /// Takes the epoch from a read of the session's key.
    pub(crate) fn learn(&self, read: &GetResponse) {
        self.epoch.store(read.kvs().first().map_or(0, KeyValue::version), SeqCst);
    }

    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.proven(), self.ttl)
    }
}

impl Store {
    /// The longest that one call may take, and so whoever has the turn before it.
    pub(crate) fn patience(&self) -> Duration {
        self.cluster.config.limit * 3
    }

    pub(crate) async fn turn<'a>(&self, of: &'a Mutex<()>) -> Result<MutexGuard<'a, ()>, Failure> {
        let turn = timeout(self.patience(), of.lock()).await;
        turn.map_err(|_| Failure::new(ErrorKind::Unavailable, "others did not end in time"))
    }

    /// The session for this TTL, with at least half of its lease before it.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        if seconds > LONGEST {
            return Err(Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s"));
        }
        let known = self.state().sessions.get(&seconds).cloned();
        if let Some(session) = known.filter(|session| session.is_young()) {
            return Ok(session);
        }
        // In a task of its own: a lease must not be forgotten because the claim that asked for it was dropped.
        let store = self.clone();
        let renewed = tokio::spawn(async move { store.young_session(seconds).await }).await;
        renewed.unwrap_or_else(|_| Err(Failure::new(ErrorKind::Unavailable, "the runtime ends").into()))
    }

    async fn young_session(&self, seconds: u64) -> Result<Arc<Session>> {
        let _turn = self.turn(&self.granting).await?;
        self.open()?;
        let known = self.state().sessions.get(&seconds).cloned();
        if let Some(session) = known {
            let young = if session.is_young() { Ok(()) } else { self.refresh(&session).await };
            match young {
                Ok(()) => return Ok(session),
                Err(Failure::LeaseGone) => {}
                Err(failure) => return Err(failure.of_a_read().into()),
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
        let session = Arc::new(Session {
            lease: granted.id(),
            ttl: Duration::from_secs(granted.ttl().unsigned_abs()),
            key: self.keys.session(granted.id()),
            epoch: AtomicI64::new(0),
            proven: AtomicU64::new(sent.as_nanos()),
            withdrawing: Mutex::default(),
        });
        self.state().sessions.insert(seconds, session.clone());
        Ok(session)
    }

    /// Renews the lease. One attempt takes less than a sixth of the TTL, after which core begins anew: so the next attempt
    /// goes to the next endpoint.
    async fn refresh(&self, session: &Session) -> Result<(), Failure> {
        let limit = (session.ttl / 8).min(self.cluster.config.limit);
        // A fresh stream each time: on one stream, a renewal that hangs in the server holds up all that follow.
        let request = |client: Client| async move {
            let sent = Moment::now();
            client.lease_client().keep_alive(session.lease).await.map(|_| sent)
        };
        let outcome = self.cluster.ask(limit, request).await.outcome;
        if matches!(outcome, Err(Failure::LeaseGone)) {
            self.lose(session);
        }
        session.proven.fetch_max(outcome?.as_nanos(), SeqCst);
        Ok(())
    }

    /// A lease that is renewed keeps alive what nobody wants any more: whose release was given up is released here.
    fn press(self: &Arc<Self>, session: &Session) {
        let (now, patience) = (Moment::now(), self.patience());
        let given_up = |since: Moment| now.since(since) > patience;
        for id in self.state().claims_in(session, |entry| entry.leaving.is_some_and(given_up)) {
            let store = self.clone();
            tokio::spawn(async move { store.release(id).await });
        }
    }

    /// The store says that this lease is no more: so are all places under it.
    pub(crate) fn lose(&self, session: &Session) {
        let ended = self.state().end(session);
        ended.into_iter().for_each(|id| self.bells.lost(id, Loss::Gone));
    }

    pub(crate) async fn renew(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let sessions: HashMap<i64, Arc<Session>> = {
            let state = self.state();
            let entries = tenures.iter().filter_map(|tenure| state.claims.get(&tenure.claim.id));
            entries.map(|entry| (entry.session.lease, entry.session.clone())).collect()
        };
        let renewals = sessions.into_iter().map(|(lease, session)| async move {
            let outcome = self.refresh(&session).await;
            if outcome.is_ok() {
                self.press(&session);
            }
            (lease, outcome)
        });
        let outcomes: HashMap<i64, _> = join_all(renewals).await.into_iter().collect();
        let state = self.state();
        let renewal = |tenure: &Tenure| {
            let known = state.claims.get(&tenure.claim.id).filter(|entry| entry.created != 0);
            let Some(entry) = known.filter(|entry| tenure.token.is_none_or(|held| held == token(entry.created))) else {
                return Renewal::Lost(Loss::Gone);
            };
            match outcomes.get(&entry.session.lease) {
                Some(Ok(())) if entry.granted && tenure.token.is_none() => Renewal::Granted(entry.grant()),
                Some(Ok(())) => Renewal::Renewed(entry.session.validity()),
                Some(Err(Failure::LeaseGone)) => Renewal::Lost(Loss::Gone),
                Some(Err(failure)) => Renewal::Unknown(failure.clone().into()),
                None => Renewal::Unknown(Failure::new(ErrorKind::Unavailable, "claimed during the renewal").into()),
            }
        };
        tenures.iter().map(renewal).collect()
    }
}
