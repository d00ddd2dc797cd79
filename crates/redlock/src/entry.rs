//! What the nodes store of a claim, and what this client remembers of its own holds.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::seam::Claim;
use leasehold_redis_client::{GivenUp, granted_ttl};

use crate::MIN_TTL;

/// A hold of this client.
#[derive(Clone)]
pub(crate) struct Held {
    /// The token on which a majority agreed. A node that granted late may have answered another one, so only the client knows.
    pub(crate) token: FencingToken,
    /// The claim as it is now. It is shared once a majority made it so, or may have: then never again exclusive.
    pub(crate) claim: Arc<Claim>,
    /// Set before its release is sent: nothing that takes a node is sent there behind that.
    pub(crate) released: GivenUp,
}

/// The lease in whole milliseconds, rounded up.
pub(crate) fn ttl(claim: &Claim) -> Duration {
    granted_ttl(claim.ttl, MIN_TTL)
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::{Mode, WaitPolicy};

    use super::*;

    #[test]
    fn a_lease_is_whole_milliseconds_and_no_shorter_than_the_least() {
        let of = |asked| ttl(&Claim::new("x", Mode::Exclusive, WaitPolicy::Try, asked, ""));
        assert_eq!(of(Duration::ZERO), MIN_TTL);
        assert_eq!(of(Duration::from_micros(2_000_001)), Duration::from_millis(2_001));
    }
}
