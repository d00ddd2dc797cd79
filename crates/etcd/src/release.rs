//! Giving a place up: at once, or by letting the hold lapse.

use std::time::Duration;

use etcd_client::{PutOptions, TxnOp};
use leasehold_core::seam::{Claim, ClaimId, Moment};
use leasehold_core::{ErrorKind, Name, Result};

use crate::claim::shared::Shared;
use crate::error::Failure;

impl Shared {
    /// Leaves nothing of the claim.
    pub(crate) async fn release(&self, name: &Name, id: ClaimId) -> Result<(), Failure> {
        let known = self.claims().get(name, id).map(|own| {
            own.releasing = true;
            own.clone()
        });
        if let Some(own) = known {
            match self.under(own.session(), self.cluster.remove(&own.key, own.created).await) {
                Err(failure) if failure.kind != ErrorKind::Lost => return Err(failure),
                _ => self.claims().remove_released(name, id),
            }
        }
        Ok(())
    }

    /// Moves the hold to a lease of its own, which is never renewed. Its key stays where it is, so it is the same hold to all
    /// other clients, whatever becomes of its session; and `release` still finds it.
    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let known = self.claims().get(&claim.name, claim.id).filter(|own| own.created != 0).cloned();
        let Some(own) = known else { return Ok(()) };
        // It goes on to exist when we have forgotten it: no later claim of ours may take its key for its own.
        own.session().close();
        let (lease, end) = self.sessions.last_lease(rest).await?;
        let same = PutOptions::new().with_lease(lease).with_ignore_value();
        let moved = vec![TxnOp::put(&*own.key.path, "", Some(same))];
        let there = self.cluster.change(own.key.was_created(own.created), moved).await?;
        let mut claims = self.claims();
        claims.remove_lapsed(Moment::now());
        if let Some(own) = claims.get(&claim.name, claim.id).filter(|now| now.created == own.created) {
            (own.releasing, own.lapses_at) = (true, Some(end));
        }
        if !there {
            claims.remove_released(&claim.name, claim.id);
        }
        Ok(())
    }

    pub(crate) async fn release_all(&self, claims: &[Claim]) -> Result<(), Failure> {
        for claim in claims {
            self.release(&claim.name, claim.id).await?;
        }
        Ok(())
    }
}
