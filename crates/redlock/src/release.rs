//! `release` and `release_after`: every node is told, and the answer of a majority is waited for.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::seam::Claim;
use leasehold_redis_client::{Call, granted_ttl};

use crate::Shared;

/// What a release leaves.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// No trace of the claim.
    Nothing = 0,
    /// The waiter.
    Waiter = 1,
    /// No trace of an attempt.
    NoAttempt = 2,
}

impl Shared {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.holds().remove(&claim.id);
        self.nodes.majority_of(self.nodes.send(self.release_call(claim, Leaves::Nothing)), false).await.map(drop)
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.holds().remove(&claim.id);
        let call = self.call("release_after", claim).arg(granted_ttl(rest, Duration::from_millis(1)).as_millis());
        self.nodes.majority_of(self.nodes.send(call), false).await.map(drop)
    }

    /// Ends what was claimed up to now, and nothing that is claimed later.
    pub(crate) fn release_call(&self, claim: &Claim, leaves: Leaves) -> Call {
        self.call("release", claim).arg(leaves as u8)
    }
}
