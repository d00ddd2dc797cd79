//! Renewals: one for each session, of all that stands in it, whoever asks for how much of it.
//!
//! A renewal goes on when whoever asked for it has left, and whoever asks again meanwhile waits for the same one: so it comes
//! to its end on a network where it takes longer than core waits for one attempt.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use leasehold_core::seam::{ClaimId, Moment, Renewal, Tenure, locked, token_of_place};
use leasehold_core::{ErrorKind, Loss};
use leasehold_etcd_client::{Failure, Session};

use crate::line::Own;
use crate::store::Store;

/// By the sessions' leases.
pub(crate) type Flights = HashMap<i64, Shared<BoxFuture<'static, Arc<Unproven>>>>;

/// What a renewal could not prove.
pub(crate) enum Unproven {
    /// These, and why.
    Some(HashMap<ClaimId, Failure>),
    /// Nothing was proven.
    All(Failure),
}

impl Unproven {
    fn why(&self, id: ClaimId) -> Option<&Failure> {
        match self {
            Unproven::Some(each) => each.get(&id),
            Unproven::All(failure) => Some(failure),
        }
    }
}

/// A renewal is on its way as long as this lives.
struct Flight(Arc<Store>, i64);

impl Drop for Flight {
    fn drop(&mut self) {
        locked(&self.0.flights).remove(&self.1);
    }
}

impl Store {
    /// A grant holds since its session's last proven renewal, nor longer than a TTL after its claim was last asked for or
    /// renewed; and as long as its own key is there, which each renewal looks at.
    pub(crate) async fn renew(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let (now, mut sessions) = (Moment::now(), HashMap::new());
        {
            let mut lines = self.lines();
            for Tenure { claim, .. } in tenures {
                if let Some(own) = lines.own(&claim.name, claim.id) {
                    own.tended = now;
                    sessions.entry(own.session().lease).or_insert_with(|| own.session().clone());
                }
            }
        }
        let flights = sessions.iter().map(|(lease, session)| self.flight(session).map(|unproven| (*lease, unproven)));
        let renewed: HashMap<i64, Arc<Unproven>> = join_all(flights).await.into_iter().collect();
        self.lapse();
        let mut lines = self.lines();
        let renewal = |Tenure { claim, token, .. }: &Tenure| {
            let known = lines.own(&claim.name, claim.id).filter(|own| own.created != 0);
            let Some(own) = known.filter(|own| token.is_none_or(|held| held == token_of_place(own.created))) else {
                return Renewal::Lost(Loss::Gone);
            };
            match renewed.get(&own.session().lease).map(|unproven| unproven.why(own.id)) {
                Some(None) if own.granted && token.is_none() => Renewal::Granted(own.grant()),
                Some(None) => Renewal::Renewed(own.validity()),
                Some(Some(failure)) => Renewal::Unknown(failure.clone().into()),
                None => Renewal::Unknown(Failure::new(ErrorKind::Unavailable, "claimed during the renewal").into()),
            }
        };
        tenures.iter().map(renewal).collect()
    }

    /// The renewal of this session that is on its way, or a new one.
    fn flight(self: &Arc<Self>, session: &Arc<Session>) -> Shared<BoxFuture<'static, Arc<Unproven>>> {
        let begin = || {
            let (flight, store, session) = (Flight(self.clone(), session.lease), self.clone(), session.clone());
            let task = tokio::spawn(async move {
                let _flight = flight;
                Arc::new(store.prove(&session).await)
            });
            let ended = || Arc::new(Unproven::All(Failure::new(ErrorKind::Unavailable, "the runtime ends")));
            task.map(move |outcome| outcome.unwrap_or_else(|_| ended())).boxed().shared()
        };
        locked(&self.flights).entry(session.lease).or_insert_with(begin).clone()
    }

    /// Renews all that stands in the session. What is gone is told at once: also to whoever has stopped to wait for this.
    async fn prove(&self, session: &Session) -> Unproven {
        let in_it = |own: &Own| own.session().lease == session.lease && own.created != 0 && !own.leaving;
        let owns: Vec<Own> = self.lines().all().filter(|(_, own)| in_it(own)).map(|(_, own)| own.clone()).collect();
        let names: Vec<_> = owns.iter().map(|own| (own.key.clone(), own.created)).collect();
        let proven = match self.under(session, self.cluster.prove(session, &names).await) {
            Ok(proven) => proven,
            Err(failure) => return Unproven::All(failure),
        };
        let (mut gone, mut unproven) = (Vec::new(), HashMap::new());
        for (own, proof) in owns.into_iter().zip(proven) {
            match proof {
                Ok(true) => {}
                Ok(false) => gone.push(own),
                Err(failure) => drop(unproven.insert(own.id, failure)),
            }
        }
        self.miss(&gone);
        Unproven::Some(unproven)
    }

    /// The keys of these are not there.
    fn miss(&self, gone: &[Own]) {
        let ids: HashMap<ClaimId, i64> = gone.iter().map(|own| (own.id, own.created)).collect();
        let mut lines = self.lines();
        for (_, own) in lines.all().filter(|(_, own)| ids.get(&own.id) == Some(&own.created)) {
            let loss = if self.was_evicted(own) { Loss::Evicted } else { Loss::Gone };
            own.stands_at(0);
            self.bells.lost(own.id, loss);
        }
    }
}
