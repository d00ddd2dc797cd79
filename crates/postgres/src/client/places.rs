//! The places in queues, of holders and of waiters, that one runtime looks after: it has claimed
//! them, and no other runtime has renewed them since. While there are any, it needs a connection.
//!
//! A place that nobody releases, because its claim failed or its holder has lost it, counts until
//! its lease is over.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::{ClaimId, Moment};
use leasehold_core::support::locked;

/// The places by their claims, each with the end of its lease.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<ClaimId, Moment>>);

impl Places {
    /// Notes that each of these claims has a place for its TTL from now on.
    pub(crate) fn add(&self, claims: impl Iterator<Item = (ClaimId, Duration)>) {
        let now = Moment::now();
        locked(&self.0).extend(claims.map(|(id, ttl)| (id, now + ttl)));
    }

    pub(crate) fn remove(&self, claims: impl Iterator<Item = ClaimId>) {
        let mut all = locked(&self.0);
        for id in claims {
            all.remove(&id);
        }
    }

    /// Returns whether there are any, and forgets those whose leases are over.
    pub(crate) fn any(&self) -> bool {
        let now = Moment::now();
        let mut all = locked(&self.0);
        all.retain(|_, until| now < *until);
        !all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_until_it_is_left_or_its_lease_is_over() {
        let places = Places::default();
        let [one, two] = [(); 2].map(|()| ClaimId::fresh());
        let ttl = Duration::from_secs(3600);
        places.add([(one, ttl), (two, Duration::ZERO)].into_iter());
        assert!(places.any());
        assert_eq!(locked(&places.0).len(), 1);
        places.remove([one].into_iter());
        assert!(!places.any());
    }
}
