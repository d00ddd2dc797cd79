//! Renewals: one for each session, of all its places, whichever of them it was asked for.
//!
//! A renewal goes on when the caller that asked for it has left, and callers that ask meanwhile
//! wait for the same renewal. It therefore completes even on a network where it takes longer than
//! core waits for one attempt. A renewal that has been under way for a third of the lease is not
//! waited for: its runtime may not be driven any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_core::backend::{ClaimId, LeaseRef, Moment, Renewal, token_of_place};
use leasehold_core::{ErrorKind, Loss};

use crate::claim::own::OwnClaim;
use crate::claim::shared::{Shared, Verified};
use crate::client::session::Session;
use crate::error::Failure;

impl Shared {
    /// A grant is valid since its session's last verified renewal, but no longer than a TTL after
    /// its claim was last sent or renewed, and only as long as its own key is there, which each
    /// renewal verifies.
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[LeaseRef]) -> Vec<Renewal> {
        let now = Moment::now();
        let mut sessions = BTreeMap::new();
        {
            let mut claims = self.claims();
            for LeaseRef { claim, .. } in leases {
                if let Some(own) = claims.get(&claim.name, claim.id) {
                    own.last_used = now;
                    sessions
                        .entry(own.session().lease)
                        .or_insert_with(|| own.session().clone());
                }
            }
        }
        let renewals = sessions
            .into_iter()
            .map(|(lease, session)| async move { (lease, self.renew_session(session).await) });
        let renewed: BTreeMap<i64, Arc<Verified>> = join_all(renewals).await.into_iter().collect();
        self.release_unused();
        let mut claims = self.claims();
        let renewal = |LeaseRef { claim, token, .. }: &LeaseRef| {
            let known = claims
                .get(&claim.name, claim.id)
                .filter(|own| own.created != 0);
            let Some(own) =
                known.filter(|own| token.is_none_or(|held| held == token_of_place(own.number())))
            else {
                return Renewal::Lost(Loss::Gone);
            };
            let later = || {
                Err(Failure::new(
                    ErrorKind::Unavailable,
                    "claimed during the renewal",
                ))
            };
            let verified = match renewed.get(&own.session().lease).map(|renewed| &**renewed) {
                // A key that came while the renewal was under way was not read.
                Some(Ok(all)) => all
                    .get(&(own.id, own.created))
                    .cloned()
                    .unwrap_or_else(later),
                Some(Err(failure)) => Err(failure.clone()),
                None => later(),
            };
            match verified {
                Ok(true) if own.granted && token.is_none() => Renewal::Granted(own.grant()),
                Ok(true) => Renewal::Renewed(own.validity()),
                Ok(false) => Renewal::Lost(Loss::Gone),
                Err(failure) => Renewal::Unknown(failure.into()),
            }
        };
        leases.iter().map(renewal).collect()
    }

    /// Renews a session for a new place in it, unless it was renewed a moment ago: core renews a
    /// place first when nearly half of a TTL has passed since its claim, and relies on the rest of
    /// the lease until then.
    pub(crate) fn renew_early(self: &Arc<Self>, session: &Arc<Session>) {
        if session.age() > session.ttl / 4 {
            let shared = self.clone();
            let session = session.clone();
            tokio::spawn(async move {
                shared.renew_session(session).await;
                shared.release_unused();
            });
        }
    }

    /// Waits for the renewal of this session that is under way, or for a new one.
    async fn renew_session(self: &Arc<Self>, session: Arc<Session>) -> Arc<Verified> {
        let lease = session.lease;
        let age = session.ttl / 3;
        let flight = self.renewals.begin(lease, age, || {
            let shared = self.clone();
            let session = session.clone();
            async move { Arc::new(shared.verify(&session).await) }
        });
        let ended = || {
            Arc::new(Err(Failure::new(
                ErrorKind::Unavailable,
                "the runtime ends",
            )))
        };
        match flight.land().await {
            Some(outcome) => outcome,
            None => {
                self.renewals.forget(lease, &flight);
                ended()
            }
        }
    }

    /// Renews all places in the session. Lost places are reported at once, because the caller may
    /// have stopped waiting.
    async fn verify(&self, session: &Session) -> Verified {
        let in_it = |own: &OwnClaim| {
            own.session().lease == session.lease && own.created != 0 && !own.releasing
        };
        let own: Vec<OwnClaim> = self
            .claims()
            .all()
            .filter(|(_, own)| in_it(own))
            .map(|(_, own)| own.clone())
            .collect();
        let keys: Vec<_> = own
            .iter()
            .map(|own| (own.key.clone(), own.created))
            .collect();
        let found = self.under(session, self.cluster.verify(session, &keys).await);
        if found
            .as_ref()
            .is_err_and(|failure| failure.kind == ErrorKind::Lost)
        {
            // The answer may come from a former leader, and a claim may be on its way that is
            // forgotten now: it must find no lease. This comes after all granted claims are lost.
            drop(self.cluster.revoke(session).await);
        }
        let found = found?;
        let verified = own
            .iter()
            .map(|own| (own.id, own.created))
            .zip(found)
            .collect();
        self.report_gone(&verified);
        Ok(verified)
    }

    /// Reports the claims whose keys are not there.
    fn report_gone(&self, verified: &HashMap<(ClaimId, i64), Result<bool, Failure>>) {
        let is_gone =
            |own: &OwnClaim| matches!(verified.get(&(own.id, own.created)), Some(Ok(false)));
        let mut claims = self.claims();
        for (_, own) in claims.all().filter(|(_, own)| is_gone(own)) {
            let loss = if self.was_evicted(own) {
                Loss::Evicted
            } else {
                Loss::Gone
            };
            own.set_created(0);
            self.notifier.lost(own.id, loss);
        }
    }

    /// Releases claims that were not claimed or renewed for a whole TTL, because a renewed lease
    /// would keep them alive, and does so again a TTL later if that failed.
    fn release_unused(self: &Arc<Self>) {
        let now = Moment::now();
        let mut claims = self.claims();
        claims.remove_lapsed(now);
        for (name, own) in claims.all().filter(|(_, own)| own.lapses_at.is_none()) {
            if own.last_used + own.session().ttl <= now {
                own.last_used = now;
                self.notifier.lost(own.id, Loss::Expired);
                let shared = self.clone();
                let name = name.clone();
                let own = own.begin_release();
                tokio::spawn(async move { shared.end_release(&name, &own).await });
            }
        }
    }
}
