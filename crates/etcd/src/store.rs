//! The store: what its parts share, and what becomes of places that nobody asks for, in sessions that live on or end.

use std::sync::{Arc, Mutex, MutexGuard};

use leasehold_core::seam::{Mode, Moment, Notifier, locked};
use leasehold_core::{ErrorKind, Loss};
use leasehold_etcd_client::{Cluster, Config, Failure, Mirrors, Session};

use crate::lines::Lines;
use crate::names::Keys;
use crate::renew::Flights;
use crate::value::mode;

pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) notifier: Notifier,
    /// Of the lines in which somebody waits or that somebody observes, and always of the evictions.
    pub(crate) mirrors: Mirrors<Mode>,
    lines: Mutex<Lines>,
    /// The renewals that are on their way.
    pub(crate) flights: Mutex<Flights>,
}

impl Store {
    pub(crate) fn new(config: Config) -> Store {
        let (keys, cluster) = (Keys::new(&config.root), Cluster::new(config));
        let mirrors = Mirrors::new(cluster.clone(), mode, &keys.evictions());
        Store { keys, cluster, notifier: Notifier::new(), mirrors, lines: Mutex::default(), flights: Mutex::default() }
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Lines> {
        locked(&self.lines)
    }

    /// A lease that is renewed keeps alive what nobody wants any more: what was not claimed or renewed for a whole TTL is
    /// released, and again a TTL later if that failed.
    pub(crate) fn lapse(self: &Arc<Self>) {
        let (now, mut lines) = (Moment::now(), self.lines());
        lines.forget_rested(now);
        for (name, own) in lines.all().filter(|(_, own)| own.rests.is_none()) {
            if own.tended + own.session().ttl <= now {
                (own.tended, own.leaving) = (now, true);
                self.notifier.lost(own.id, Loss::Expired);
                let (store, name, id) = (self.clone(), name.clone(), own.id);
                tokio::spawn(async move { store.release(&name, id).await });
            }
        }
    }

    /// The outcome of a request that needs this session's lease.
    pub(crate) fn under<T>(&self, session: &Session, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| failure.is(ErrorKind::Lost)) {
            self.lose(session);
        }
        outcome
    }

    /// The session's lease is no more: so are all places under it.
    pub(crate) fn lose(&self, session: &Session) {
        session.close();
        let lost = self.lines().end(session);
        lost.into_iter().for_each(|id| self.notifier.lost(id, Loss::Gone));
    }
}
