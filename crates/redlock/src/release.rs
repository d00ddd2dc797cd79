//! `release` and `release_after`: sent to every node; the answers of a majority are awaited.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::seam::Claim;
use leasehold_redis_client::granted_ttl;

use crate::Shared;

/// What a release leaves of what was claimed up to now. It ends nothing that is claimed later.
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
        self.forget(claim.id);
        let call = self.call("release", claim).arg(Leaves::Nothing as u8);
        self.nodes.majority_of(self.nodes.send(call), false).await.map(drop)
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.forget(claim.id);
        let call = self.call("release_after", claim).arg(granted_ttl(rest, Duration::from_millis(1)).as_millis());
        self.nodes.majority_of(self.nodes.send(call), false).await.map(drop)
    }
}
