//! The store: what its parts share, and what becomes of places that nobody asks for, in sessions that live on or end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::join_all;
use leasehold_core::seam::{Bells, Mode, Moment, Renewal, Tenure, locked, token_of_place};
use leasehold_core::{ErrorKind, Loss};
use leasehold_etcd_client::{Cluster, Config, Failure, Mirrors, Session};

use crate::lines::Lines;
use crate::names::Keys;
use crate::value::mode;

pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) bells: Bells,
    /// Of the lines in which somebody waits or that somebody observes, and always of the evictions.
    pub(crate) mirrors: Mirrors<Mode>,
    lines: Mutex<Lines>,
}

impl Store {
    pub(crate) fn new(config: Config) -> Store {
        let (keys, cluster) = (Keys::new(&config.root), Cluster::new(config));
        let mirrors = Mirrors::new(cluster.clone(), mode, &keys.evictions());
        Store { keys, cluster, bells: Bells::new(), mirrors, lines: Mutex::default() }
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Lines> {
        locked(&self.lines)
    }

    /// One request for each session. A grant holds since its session's last proven renewal, nor longer than a TTL after its
    /// claim was last asked for or renewed.
    pub(crate) async fn renew(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let (now, mut sessions) = (Moment::now(), HashMap::new());
        for Tenure { claim, .. } in tenures {
            if let Some(own) = self.lines().own(&claim.name, claim.id) {
                own.tended = now;
                sessions.insert(own.session().lease, own.session().clone());
            }
        }
        let renew = |session: Arc<Session>| async move { self.under(&session, self.cluster.renew(&session).await) };
        let renewed = join_all(sessions.into_values().map(renew)).await;
        self.lapse();
        let failed = renewed.into_iter().find_map(Result::err);
        let failed = failed.unwrap_or_else(|| Failure::new(ErrorKind::Unavailable, "claimed during the renewal"));
        let mut lines = self.lines();
        let renewal = |Tenure { claim, token, .. }: &Tenure| {
            let known = lines.own(&claim.name, claim.id).filter(|own| own.created != 0);
            match known.filter(|own| token.is_none_or(|held| held == token_of_place(own.created))) {
                None => Renewal::Lost(Loss::Gone),
                Some(own) if own.session().proven() < now => Renewal::Unknown(failed.clone().into()),
                Some(own) if own.granted && token.is_none() => Renewal::Granted(own.grant()),
                Some(own) => Renewal::Renewed(own.validity()),
            }
        };
        tenures.iter().map(renewal).collect()
    }

    /// A lease that is renewed keeps alive what nobody wants any more: what was not claimed or renewed for a whole TTL is
    /// released, and again a TTL later if that failed.
    fn lapse(self: &Arc<Self>) {
        let now = Moment::now();
        for (name, own) in self.lines().all() {
            if own.tended + own.session().ttl <= now {
                (own.tended, own.leaving) = (now, true);
                self.bells.lost(own.id, Loss::Expired);
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
        lost.into_iter().for_each(|id| self.bells.lost(id, Loss::Gone));
    }
}
