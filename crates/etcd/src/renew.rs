//! Renewals: one for each session, of all that stands in it, whoever asks for how much of it.
//!
//! A renewal goes on when whoever asked for it has left, and whoever asks again meanwhile waits for the same one: so it comes
//! to its end on a network where it takes longer than core waits for one attempt. But not for one that has been on its way for
//! as long as holds go without a renewal: it may be that of a runtime that nobody drives any more.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use leasehold_core::seam::{ClaimId, LeaseRef, Moment, Renewal, locked, token_of_place};
use leasehold_core::{ErrorKind, Loss};
use leasehold_etcd_client::{Failure, Session};

use crate::line::Own;
use crate::store::Store;

/// By the sessions' leases: since when each is on its way.
pub(crate) type Flights = HashMap<i64, (Moment, Shared<BoxFuture<'static, Arc<Proof>>>)>;

/// What came of a renewal.
pub(crate) enum Proof {
    /// Of each place that it has looked at, by its create_revision.
    Each(HashMap<(ClaimId, i64), Result<(), Failure>>),
    /// Nothing was proven.
    Nothing(Failure),
}

impl Proof {
    fn of(&self, own: &Own) -> Result<(), Failure> {
        // Who came while it was under way was not looked at.
        let later = || Err(Failure::new(ErrorKind::Unavailable, "claimed during the renewal"));
        match self {
            Proof::Each(all) => all.get(&(own.id, own.created)).cloned().unwrap_or_else(later),
            Proof::Nothing(failure) => Err(failure.clone()),
        }
    }
}

/// A renewal is on its way as long as this lives: of this lease, since then.
struct Flight(Arc<Store>, i64, Moment);

impl Drop for Flight {
    fn drop(&mut self) {
        let Flight(store, lease, since) = self;
        locked(&store.flights).retain(|of, (begun, _)| (of, begun) != (lease, since));
    }
}

impl Store {
    /// A grant holds since its session's last proven renewal, nor longer than a TTL after its claim was last asked for or
    /// renewed; and as long as its own key is there, which each renewal looks at.
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[LeaseRef]) -> Vec<Renewal> {
        let (now, mut sessions) = (Moment::now(), HashMap::new());
        {
            let mut lines = self.lines();
            for LeaseRef { claim, .. } in leases {
                if let Some(own) = lines.own(&claim.name, claim.id) {
                    own.tended = now;
                    sessions.entry(own.session().lease).or_insert_with(|| own.session().clone());
                }
            }
        }
        let flights = sessions.iter().map(|(lease, session)| self.flight(session).map(|proof| (*lease, proof)));
        let renewed: HashMap<i64, Arc<Proof>> = join_all(flights).await.into_iter().collect();
        self.lapse();
        let mut lines = self.lines();
        let renewal = |LeaseRef { claim, token, .. }: &LeaseRef| {
            let known = lines.own(&claim.name, claim.id).filter(|own| own.created != 0);
            let Some(own) = known.filter(|own| token.is_none_or(|held| held == token_of_place(own.created))) else {
                return Renewal::Lost(Loss::Gone);
            };
            match renewed.get(&own.session().lease).map(|proof| proof.of(own)) {
                Some(Ok(())) if own.granted && token.is_none() => Renewal::Granted(own.grant()),
                Some(Ok(())) => Renewal::Renewed(own.validity()),
                Some(Err(failure)) => Renewal::Unknown(failure.into()),
                None => Renewal::Unknown(Failure::new(ErrorKind::Unavailable, "claimed during the renewal").into()),
            }
        };
        leases.iter().map(renewal).collect()
    }

    /// The renewal of this session that is on its way, or a new one.
    fn flight(self: &Arc<Self>, session: &Arc<Session>) -> Shared<BoxFuture<'static, Arc<Proof>>> {
        let now = Moment::now();
        let mut flights = locked(&self.flights);
        let (lease, young) = (session.lease, |since: Moment| now.since(since) < session.ttl / 3);
        if let Some((_, flight)) =
            flights.get(&lease).filter(|(since, flight)| young(*since) && flight.peek().is_none())
        {
            return flight.clone();
        }
        let (store, session) = (self.clone(), session.clone());
        let task = tokio::spawn(async move {
            // Not before it runs: a runtime that is ending drops it here, where the flights are locked.
            let _flight = Flight(store.clone(), lease, now);
            Arc::new(store.prove(&session).await)
        });
        let ended = || Arc::new(Proof::Nothing(Failure::new(ErrorKind::Unavailable, "the runtime ends")));
        let new = task.map(move |outcome| outcome.unwrap_or_else(|_| ended())).boxed().shared();
        let before = flights.insert(lease, (now, new.clone()));
        drop(flights);
        drop(before);
        new
    }

    /// Renews all that stands in the session. What is gone is told at once: also to whoever has stopped to wait for this.
    async fn prove(&self, session: &Session) -> Proof {
        let in_it = |own: &Own| own.session().lease == session.lease && own.created != 0 && !own.leaving;
        let owns: Vec<Own> = self.lines().all().filter(|(_, own)| in_it(own)).map(|(_, own)| own.clone()).collect();
        let names: Vec<_> = owns.iter().map(|own| (own.key.clone(), own.created)).collect();
        let proven = match self.under(session, self.cluster.prove(session, &names).await) {
            Ok(proven) => proven,
            Err(failure) => return Proof::Nothing(failure),
        };
        let (mut gone, mut each) = (Vec::new(), HashMap::new());
        for (own, proof) in owns.into_iter().zip(proven) {
            let at = (own.id, own.created);
            match proof {
                Ok(true) => drop(each.insert(at, Ok(()))),
                Ok(false) => gone.push(own),
                Err(failure) => drop(each.insert(at, Err(failure))),
            }
        }
        self.miss(&gone);
        Proof::Each(each)
    }

    /// The keys of these are not there.
    fn miss(&self, gone: &[Own]) {
        let ids: HashMap<ClaimId, i64> = gone.iter().map(|own| (own.id, own.created)).collect();
        let mut lines = self.lines();
        for (_, own) in lines.all().filter(|(_, own)| ids.get(&own.id) == Some(&own.created)) {
            let loss = if self.was_evicted(own) { Loss::Evicted } else { Loss::Gone };
            own.stands_at(0);
            self.notifier.lost(own.id, loss);
        }
    }
}
