//! The claim as the nodes store it, and this client's memory of its own holds.

use std::sync::Arc;
use std::time::Duration;

use crate::link::{GivenUp, granted_ttl};
use leasehold_core::FencingToken;
use leasehold_core::backend::Claim;

use crate::redlock::MIN_TTL;

/// A hold of this client.
#[derive(Clone)]
pub(crate) struct Held {
    /// The token on which a majority agreed. A node that granted late may have answered another
    /// one, so only the client knows it.
    pub(crate) token: FencingToken,
    /// The claim in its current state. It is shared once a majority has made it so, or may have; it
    /// never becomes exclusive again.
    pub(crate) claim: Arc<Claim>,
    /// Set before the hold's release is sent: no request that takes a node for this hold is sent
    /// behind the release.
    pub(crate) released: GivenUp,
}

/// The lease in whole milliseconds, rounded up.
pub(crate) fn ttl(claim: &Claim) -> Duration {
    granted_ttl(claim.ttl, MIN_TTL)
}

#[cfg(test)]
mod tests {
    use leasehold_core::backend::{Mode, WaitPolicy};

    use super::*;

    #[test]
    fn a_lease_is_whole_milliseconds_and_no_shorter_than_the_least() {
        let of = |asked| {
            ttl(&Claim::new(
                "x",
                Mode::Exclusive,
                WaitPolicy::Try,
                asked,
                "",
            ))
        };
        assert_eq!(of(Duration::ZERO), MIN_TTL);
        assert_eq!(
            of(Duration::from_micros(2_000_001)),
            Duration::from_millis(2_001)
        );
    }
}
