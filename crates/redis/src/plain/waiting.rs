//! The waiters of this client: when each has to say in the store that it waits, and how often it
//! asks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::{ClaimId, Moment};
use leasehold_core::support::locked;

/// The shortest interval between two questions of a waiter.
const POLL: Duration = Duration::from_millis(100);
/// The interval grows by this for each waiter of the client for one lock: together they ask less
/// than 150 times a second, as long as a third of a lease is long enough.
const EACH: Duration = Duration::from_millis(8);

/// The waiters of this client, by lock.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<HashMap<String, HashMap<ClaimId, Said>>>);

/// When a waiter last said that it waits, and for how long that is good.
#[derive(Clone, Copy, Debug)]
struct Said {
    at: Moment,
    ttl: Duration,
}

impl Said {
    fn is_good(&self, now: Moment) -> bool {
        now.since(self.at) < self.ttl
    }

    fn is_due(&self, now: Moment) -> bool {
        now.since(self.at) >= self.ttl / 3
    }
}

impl Waiters {
    /// Returns whether this claim has said that it waits.
    pub(super) fn has(&self, lock: &str, id: ClaimId) -> bool {
        locked(&self.0)
            .get(lock)
            .is_some_and(|of| of.contains_key(&id))
    }

    /// Notes a claim that waits for this lock with this lease. Returns whether it has to say so
    /// now, and the number of the client's waiters for the lock.
    pub(super) fn note(&self, lock: &str, id: ClaimId, ttl: Duration) -> (bool, usize) {
        let now = Moment::now();
        let mut all = locked(&self.0);
        // A claim that was never taken back ends with its lease.
        if all.len() == all.capacity() && !all.contains_key(lock) {
            all.retain(|_, of| of.values().any(|said| said.is_good(now)));
        }
        let of = all.entry(lock.to_owned()).or_default();
        if of.len() == of.capacity() && !of.contains_key(&id) {
            of.retain(|_, said| said.is_good(now));
        }
        let is_due = of.get(&id).is_none_or(|said| said.is_due(now));
        if is_due {
            of.insert(id, Said { at: now, ttl });
        }
        (is_due, of.len())
    }

    /// Forgets this claim.
    pub(super) fn forget(&self, lock: &str, id: ClaimId) {
        let mut all = locked(&self.0);
        if let Some(of) = all.get_mut(lock) {
            of.remove(&id);
            if of.is_empty() {
                all.remove(lock);
            }
        }
    }
}

/// The delay after which one of so many waiters of the client asks again, behind a lease with so
/// many milliseconds left. It is less by a random part of up to a quarter.
pub(super) fn retry_after(left: i64, waiters: usize, ttl: Duration) -> Duration {
    let waiters = u32::try_from(waiters).unwrap_or(u32::MAX);
    let poll = EACH.saturating_mul(waiters).min(ttl / 3).max(POLL);
    let poll = poll.mul_f64(1.0 - fastrand::f64() / 4.0);
    let left = u64::try_from(left).map_or(Duration::MAX, Duration::from_millis);
    poll.min(left.saturating_add(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    #[test]
    fn a_waiter_asks_again_soon_and_not_before_a_lease_ends() {
        for (left, least, most) in [(-1, 74, 100), (40, 40, 41), (9_999_999, 74, 100)] {
            let ms = retry_after(left, 1, TTL).as_millis();
            assert!((least..=most).contains(&ms), "{left}: {ms}");
        }
    }

    #[test]
    fn many_waiters_of_a_client_ask_together_as_often_as_few() {
        for waiters in [13, 100, 300] {
            let each = |_| 1.0 / retry_after(-1, waiters, TTL).as_secs_f64();
            let all: f64 = (0..waiters).map(each).sum();
            assert!((110.0..170.0).contains(&all), "{waiters}: {all} a second");
        }
        // Each asks in any case before its lease needs it.
        let ms = retry_after(-1, usize::MAX, TTL).as_millis();
        assert!((2240..=3000).contains(&ms), "{ms}");
        let ms = retry_after(-1, 1, TTL / 1000).as_millis();
        assert!((74..=100).contains(&ms), "{ms}");
    }

    #[test]
    fn a_waiter_says_so_once_in_a_third_of_its_lease() {
        let waiting = Waiters::default();
        let [one, two] = [ClaimId::fresh(), ClaimId::fresh()];
        assert!(!waiting.has("x", one));
        assert_eq!(waiting.note("x", one, TTL), (true, 1));
        assert_eq!(waiting.note("x", one, TTL), (false, 1));
        assert_eq!(waiting.note("x", two, TTL), (true, 2));
        assert_eq!(waiting.note("y", two, TTL), (true, 1));
        assert!(waiting.has("x", one) && !waiting.has("y", one));
        let at = Moment::now();
        let said = Said { at, ttl: TTL };
        assert!(!said.is_due(at + TTL / 4) && said.is_due(at + TTL / 3));
        assert!(said.is_good(at + TTL / 2) && !said.is_good(at + TTL));
        for (lock, id) in [("x", one), ("x", two), ("y", two), ("z", one)] {
            waiting.forget(lock, id);
        }
        assert!(locked(&waiting.0).is_empty());
    }

    /// A claim may never be taken back, as where its server is gone.
    #[test]
    fn waiters_that_are_gone_do_not_pile_up() {
        let waiting = Waiters::default();
        for n in 0..10_000 {
            waiting.note("x", ClaimId::fresh(), Duration::ZERO);
            waiting.note(&n.to_string(), ClaimId::fresh(), Duration::ZERO);
        }
        let all = locked(&waiting.0);
        let kept: usize = all.values().map(HashMap::len).sum();
        assert!(kept < 100, "{kept}");
    }
}
