//! Sessions: one lease for each TTL that is asked for. All places of that TTL live under it, and one request renews them.
//!
//! A grant is valid since the session's last *proven* renewal: the send of the last keep-alive that was answered, or of
//! the grant of the lease. Never since the claim, which extends nothing.
//!
//! Each session has one key, `%session/<lease>`, written only when needed:
//! * its version is the session's *epoch*. A claim is executed only in the epoch it was sent in; a withdrawal begins a new
//!   one. So no late request of a withdrawn claim can leave a key under a lease that lives on;
//! * whoever evicts a hold writes its create_revision there, in the same transaction. The watch on this key is how the
//!   holder hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use leasehold_core::seam::{Moment, Renewal, Tenure, Validity};
use leasehold_core::{Error, ErrorKind, Loss, Result};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::Failure;
use crate::store::Store;
use crate::table::{Wanted, token};

/// Above this etcd refuses a lease.
const LONGEST: u64 = 9_000_000_000;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lease: i64,
    /// As granted: whole seconds, and not less than the server's minimum.
    pub(crate) ttl: Duration,
    /// The session's key.
    pub(crate) key: String,
    /// The number of its watch.
    pub(crate) watch: i64,
    pub(crate) epoch: AtomicI64,
    /// The version of the key up to which its watch has told all.
    pub(crate) heard: AtomicI64,
    proven: AtomicU64,
    gone: AtomicBool,
    renewing: Mutex<()>,
    /// Withdrawals go one by one: each begins an epoch, and would make the others try again.
    pub(crate) withdrawing: Mutex<()>,
}

impl Session {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }

    fn proven(&self) -> Moment {
        Moment::from_nanos(self.proven.load(SeqCst))
    }

    fn age(&self) -> Duration {
        Moment::now().since(self.proven())
    }

    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.proven(), self.ttl)
    }
}

fn young(session: &Arc<Session>) -> bool {
    session.age() <= session.ttl / 2
}

impl Store {
    /// The session for this TTL, with at least half of its lease before it.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        if seconds > LONGEST {
            return Err(Error::new(ErrorKind::Invalid, "etcd grants no lease longer than 9000000000 s"));
        }
        let known = self.state().sessions.get(&seconds).cloned();
        if let Some(session) = known.filter(young) {
            return Ok(session);
        }
        // In a task of its own: a lease must not be forgotten because the claim that asked for it was dropped.
        let store = self.clone();
        let renewed = tokio::spawn(async move { store.young_session(seconds).await }).await;
        renewed.unwrap_or_else(|_| Err(Failure::NotExecuted("the runtime ends".into()).into()))
    }

    async fn young_session(&self, seconds: u64) -> Result<Arc<Session>> {
        // The longest that whoever is before us may take.
        let patience = self.cluster.limit * 3;
        let Ok(_turn) = timeout(patience, self.granting.lock()).await else {
            return Err(Failure::NotExecuted("no session in time".into()).into());
        };
        self.open()?;
        let known = self.state().sessions.get(&seconds).cloned();
        if let Some(session) = known {
            if young(&session) {
                return Ok(session);
            }
            if session.age() < session.ttl || self.state().has_claims(session.lease) {
                match self.refresh(&session, Moment::now()).await {
                    Ok(()) => return Ok(session),
                    Err(Failure::LeaseGone) => {}
                    Err(failure) => return Err(failure.of_a_read().into()),
                }
            } else {
                self.lose(&session);
            }
        }
        let request = |client: etcd_client::Client| async move {
            let sent = Moment::now();
            let granted = client.lease_client().grant(seconds.max(1).cast_signed(), None).await?;
            Ok((sent, granted))
        };
        // A lease whose grant was not answered ends by itself: nothing is under it.
        let answer = self.cluster.ask(self.cluster.limit, request).await;
        let (sent, granted) = answer.outcome.map_err(Failure::of_a_read)?;
        let mut state = self.state();
        let session = Arc::new(Session {
            lease: granted.id(),
            ttl: Duration::from_secs(granted.ttl().unsigned_abs()),
            key: self.keys.session(granted.id()),
            watch: state.number_watch(),
            epoch: AtomicI64::new(0),
            heard: AtomicI64::new(0),
            proven: AtomicU64::new(sent.as_nanos()),
            gone: AtomicBool::new(false),
            renewing: Mutex::default(),
            withdrawing: Mutex::default(),
        });
        state.sessions.insert(seconds, session.clone());
        state.want(session.watch, Wanted::Session(session.clone()));
        Ok(session)
    }

    /// Renews the lease, unless somebody did since `wanted`. One attempt takes less than a sixth of the TTL, after which
    /// core begins anew: so the next attempt goes to the next endpoint.
    pub(crate) async fn refresh(&self, session: &Session, wanted: Moment) -> Result<(), Failure> {
        let limit = (session.ttl / 8).min(self.cluster.limit);
        let Ok(_turn) = timeout(limit * 3, session.renewing.lock()).await else { return Err(Failure::silent()) };
        if session.is_gone() {
            return Err(Failure::LeaseGone);
        }
        if session.proven() >= wanted {
            return Ok(());
        }
        // A fresh stream each time: on one stream, a renewal that hangs in the server holds up all that follow.
        let request = |client: etcd_client::Client| async move {
            let sent = Moment::now();
            client.lease_client().keep_alive(session.lease).await.map(|_| sent)
        };
        match self.cluster.ask(limit, request).await.outcome {
            Ok(sent) => {
                session.proven.fetch_max(sent.as_nanos(), SeqCst);
                Ok(())
            }
            Err(failure) => {
                if matches!(failure, Failure::LeaseGone) {
                    self.lose(session);
                }
                Err(failure)
            }
        }
    }

    /// A lease that is renewed keeps alive what nobody wants any more: whose release was given up is released here.
    fn press(self: &Arc<Self>, session: &Session) {
        let given_up = self.state().leaving(session, self.cluster.limit * 3);
        for id in given_up {
            let store = self.clone();
            tokio::spawn(async move { store.release(id).await });
        }
    }

    /// The store says that this lease is no more: so are all places under it.
    pub(crate) fn lose(&self, session: &Session) {
        if session.gone.swap(true, SeqCst) {
            return;
        }
        let ended = self.state().end(session);
        ended.into_iter().for_each(|id| self.bells.lost(id, Loss::Gone));
    }

    pub(crate) async fn renew(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let wanted = Moment::now();
        let sessions = self.state().sessions_of(tenures);
        let renewals = sessions.into_iter().map(|session| async move {
            let outcome = self.refresh(&session, wanted).await;
            if outcome.is_ok() {
                self.press(&session);
            }
            (session.lease, outcome)
        });
        let outcomes = futures_util::future::join_all(renewals).await;
        let state = self.state();
        let renewal = |tenure: &Tenure| {
            let Some(entry) = state.claims.get(&tenure.claim.id).filter(|entry| entry.created != 0) else {
                return Renewal::Lost(Loss::Gone);
            };
            if tenure.token.is_some_and(|held| held != token(entry.created)) {
                return Renewal::Lost(Loss::Gone);
            }
            let outcome = outcomes.iter().find(|(lease, _)| *lease == entry.session.lease);
            match outcome.map(|(_, outcome)| outcome) {
                Some(Ok(())) if entry.granted && tenure.token.is_none() => Renewal::Granted(entry.grant()),
                Some(Ok(())) => Renewal::Renewed(entry.session.validity()),
                Some(Err(Failure::LeaseGone)) => Renewal::Lost(Loss::Gone),
                Some(Err(failure)) => Renewal::Unknown(failure.clone().into()),
                None => Renewal::Unknown(Failure::NotExecuted("claimed during the renewal".into()).into()),
            }
        };
        tenures.iter().map(renewal).collect()
    }
}
