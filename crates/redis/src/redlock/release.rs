//! `release` and `release_after`: both are sent to every node, and the answers of a majority are
//! awaited.

use std::time::Duration;

use crate::link::granted_ttl;
use leasehold_core::Result;
use leasehold_core::backend::Claim;

use crate::redlock::Shared;

/// The part of a claim that a release leaves. A release ends nothing that is claimed later.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// No trace of the claim is left.
    Nothing = 0,
    /// The waiter is left.
    Waiter = 1,
    /// No trace of an attempt is left.
    NoAttempt = 2,
}

impl Shared {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.forget(claim.id);
        let call = self.call("release", claim).arg(Leaves::Nothing as u8);
        self.nodes
            .majority_of(self.nodes.send(call), false)
            .await
            .map(drop)
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.forget(claim.id);
        let call = self
            .call("release_after", claim)
            .arg(granted_ttl(rest, Duration::from_millis(1)).as_millis());
        self.nodes
            .majority_of(self.nodes.send(call), false)
            .await
            .map(drop)
    }
}
