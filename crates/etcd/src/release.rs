//! Giving a place up: at once, or by letting the hold lapse.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{PutOptions, TxnOp};
use leasehold_core::backend::{Claim, ClaimId, Moment};
use leasehold_core::{ErrorKind, Name, Result};

use crate::claim::own::OwnClaim;
use crate::claim::shared::Shared;
use crate::error::Failure;

impl Shared {
    /// Removes all of the claim from the store.
    pub(crate) async fn release(self: &Arc<Self>, name: &Name, id: ClaimId) -> Result<(), Failure> {
        let known = self.claims().get(name, id).map(OwnClaim::begin_release);
        match known {
            Some(own) => self.end_release(name, &own).await,
            None => Ok(()),
        }
    }

    /// Ends a release that has begun.
    pub(crate) async fn end_release(
        self: &Arc<Self>,
        name: &Name,
        own: &OwnClaim,
    ) -> Result<(), Failure> {
        match self.under(own.session(), self.remove(own).await) {
            Err(failure) if failure.kind != ErrorKind::Lost => return Err(failure),
            _ => self.claims().remove_released(name, own),
        }
        Ok(())
    }

    async fn remove(self: &Arc<Self>, own: &OwnClaim) -> Result<(), Failure> {
        if own.turns.is_some() && own.created != 0 && !own.doubt {
            match self.hand_on(own).await {
                // The server writes nothing, or refuses this; the key can still be deleted.
                Err(failure) if failure.is_full() || !failure.is_of_this_endpoint() => {}
                removed => return removed,
            }
        }
        self.cluster.remove(&own.key, own.created, own.doubt).await
    }

    /// Moves the hold to a lease of its own that is never renewed. Its key stays in its place, so
    /// to all other clients it is the same hold, whatever becomes of its session; and `release`
    /// still finds it.
    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let known = self
            .claims()
            .get(&claim.name, claim.id)
            .filter(|own| own.created != 0)
            .cloned();
        let Some(own) = known else { return Ok(()) };
        // The key outlives the record of it: no later claim of this client may take the key for its
        // own.
        own.session().close();
        let (lease, end) = self.sessions.last_lease(rest).await?;
        let same = PutOptions::new().with_lease(lease).with_ignore_value();
        let mut moved = vec![TxnOp::put(&*own.key.path, "", Some(same))];
        if own.doubt {
            // A late request would create the key once more when it has lapsed.
            moved.push(own.session().closing());
        }
        let there = self
            .cluster
            .change(own.key.was_created(own.created), moved)
            .await?;
        let mut claims = self.claims();
        claims.remove_lapsed(Moment::now());
        if let Some(now) = claims
            .get(&claim.name, claim.id)
            .filter(|now| now.created == own.created)
        {
            (now.releasing, now.lapses_at) = (true, Some(end));
        }
        if !there {
            claims.remove_released(&claim.name, &own);
        }
        Ok(())
    }

    pub(crate) async fn release_all(self: &Arc<Self>, claims: &[Claim]) -> Result<(), Failure> {
        for claim in claims {
            self.release(&claim.name, claim.id).await?;
        }
        Ok(())
    }
}
