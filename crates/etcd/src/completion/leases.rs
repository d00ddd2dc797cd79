//! The leases of completions whose requests are under way.
//!
//! A completion has a lease of its own, which ends it. Each attempt to write one gets a lease with
//! a number that this client has chosen. The number is kept here from before the grant is sent
//! until an answer says which lease the completion has, if it has one. The others are then ended:
//! they would live on for the whole keep.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use leasehold_core::backend::{ClaimId, Moment};
use leasehold_core::support::locked;

/// The leases that were asked for, by claim.
#[derive(Default, Debug)]
pub(crate) struct Leases {
    asked: Mutex<HashMap<ClaimId, Vec<Lease>>>,
    /// The number of leases that this client has asked for.
    count: AtomicU64,
}

/// A lease that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    /// Its number.
    pub(crate) id: i64,
    /// The time just before it was asked for.
    pub(crate) asked: Moment,
    ttl: Duration,
}

impl Leases {
    /// Notes a new lease for the completion of this claim, which is about to be asked for.
    pub(crate) fn begin(&self, claim: ClaimId, ttl: Duration) -> Lease {
        let asked = Moment::now();
        let id = number(claim, self.count.fetch_add(1, Relaxed));
        let lease = Lease { id, asked, ttl };
        let mut all = locked(&self.asked);
        // Those of claims that are not completed any more have ended.
        all.retain(|_, leases| leases.iter().any(|lease| lease.asked + lease.ttl > asked));
        all.entry(claim).or_default().push(lease);
        lease
    }

    /// Forgets a lease that no request under way can use.
    pub(crate) fn forget(&self, claim: ClaimId, lease: i64) {
        let mut all = locked(&self.asked);
        if let Some(leases) = all.get_mut(&claim) {
            leases.retain(|other| other.id != lease);
            if leases.is_empty() {
                all.remove(&claim);
            }
        }
    }

    /// Ends the requests of this claim: returns its leases without the one that its completion has,
    /// if it has one.
    pub(crate) fn settle(&self, claim: ClaimId, used: Option<i64>) -> Vec<i64> {
        let leases = locked(&self.asked).remove(&claim).unwrap_or_default();
        leases
            .iter()
            .map(|lease| lease.id)
            .filter(|lease| Some(*lease) != used)
            .collect()
    }
}

/// A positive number that no other lease has: the ids of claims are random.
fn number(claim: ClaimId, nth: u64) -> i64 {
    let id = u128::from_str_radix(&claim.to_string(), 16).unwrap_or_default();
    let of_claim = (id >> 64) as u64 ^ id as u64;
    let spread = nth.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (of_claim.wrapping_add(spread) >> 1).cast_signed().max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LONG: Duration = Duration::from_secs(9_000_000_000);

    #[test]
    fn each_lease_has_a_number_of_its_own() {
        let leases = Leases::default();
        let claims = [ClaimId::fresh(), ClaimId::fresh()];
        let all: BTreeSet<i64> = (0..1000)
            .map(|i| leases.begin(claims[i % 2], LONG).id)
            .collect();
        assert!(all.len() == 1000 && all.iter().all(|id| *id > 0));
    }

    #[test]
    fn all_but_the_lease_in_use_are_to_be_ended() {
        let leases = Leases::default();
        let [one, other] = [ClaimId::fresh(), ClaimId::fresh()];
        let asked: Vec<i64> = (0..3).map(|_| leases.begin(one, LONG).id).collect();
        let kept = leases.begin(other, LONG).id;
        leases.forget(one, asked[0]);
        assert_eq!(leases.settle(one, Some(asked[1])), [asked[2]]);
        assert!(leases.settle(one, None).is_empty());
        assert_eq!(leases.settle(other, None), [kept]);
    }

    #[test]
    fn what_has_ended_is_not_kept() {
        let leases = Leases::default();
        for _ in 0..100 {
            leases.begin(ClaimId::fresh(), Duration::ZERO);
        }
        assert_eq!(locked(&leases.asked).len(), 1);
    }
}
