//! The state that all operations of one client share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold_core::backend::{ClaimId, Notifier};
use leasehold_core::support::locked;
use leasehold_core::{ErrorKind, Loss};

use crate::claim::own_claims::OwnClaims;
use crate::client::cluster::Cluster;
use crate::client::mirrors::Mirrors;
use crate::client::session::Session;
use crate::client::sessions::Sessions;
use crate::client::single_flight::SingleFlight;
use crate::completion::leases::Leases;
use crate::config::Config;
use crate::entry::{self, QueueEntry};
use crate::error::Failure;
use crate::fence::raise::KnownBase;
use crate::names::Keys;

/// The result of a session's renewal: for each place that it looked for, by claim and
/// create_revision, `true` if its key is there. An outer `Err` means that nothing was verified.
pub(crate) type Verified = Result<HashMap<(ClaimId, i64), Result<bool, Failure>>, Failure>;

pub(crate) struct Shared {
    pub(crate) keys: Keys,
    pub(crate) base: KnownBase,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) notifier: Notifier,
    /// Mirrors of the names for which a claim waits or that are observed, and always of the
    /// evictions.
    pub(crate) mirrors: Mirrors<QueueEntry>,
    claims: Mutex<OwnClaims>,
    /// The renewals that are under way, by their sessions' leases.
    pub(crate) renewals: Arc<SingleFlight<i64, Arc<Verified>>>,
    /// The leases of completions that are under way.
    pub(crate) leases: Leases,
    /// The leases that are being ended.
    pub(crate) ending: Arc<SingleFlight<i64, ()>>,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Shared {
        let keys = Keys {
            root: config.root.clone(),
        };
        let cluster = Cluster::new(config);
        let mirrors = Mirrors::new(cluster.clone(), entry::mirrored, &keys.evictions());
        let sessions = Sessions::new(cluster.clone());
        let notifier = Notifier::new();
        let base = KnownBase::default();
        let claims = Mutex::default();
        let renewals = Arc::default();
        let leases = Leases::default();
        let ending = Arc::default();
        Shared {
            keys,
            base,
            cluster,
            sessions,
            notifier,
            mirrors,
            claims,
            renewals,
            leases,
            ending,
        }
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, OwnClaims> {
        locked(&self.claims)
    }

    /// Passes on the outcome of a request that needs this session's lease; if the lease is lost, so
    /// is the session.
    pub(crate) fn under<T>(
        &self,
        session: &Session,
        outcome: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if outcome
            .as_ref()
            .is_err_and(|failure| failure.kind == ErrorKind::Lost)
        {
            self.lose(session);
        }
        outcome
    }

    /// Records that the session's lease has ended, and all places under it with it.
    pub(crate) fn lose(&self, session: &Session) {
        session.close();
        let lost = self.claims().remove_session(session);
        lost.into_iter()
            .for_each(|id| self.notifier.lost(id, Loss::Gone));
    }
}
