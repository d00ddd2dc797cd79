//! When a program gets SIGTERM, and when SIGKILL, so that all of it has ended before another client can hold its lock.

use std::time::Duration;

use leasehold::seam::Moment;
use serde::{Deserialize, Serialize};

/// How much of a lease is kept for ending the program: the last tenth is for killing it, the fifth before that is its
/// time to end by itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) margin: Duration,
    pub(crate) grace: Duration,
}

impl Plan {
    pub(crate) fn for_ttl(ttl: Duration) -> Plan {
        Plan { margin: (ttl / 10).min(Duration::from_secs(5)), grace: (ttl / 5).min(Duration::from_secs(30)) }
    }

    /// When to ask it to end (SIGTERM).
    pub(crate) fn term_at(&self, deadline: Moment) -> Moment {
        before(self.kill_at(deadline), self.grace)
    }

    /// When to kill it.
    pub(crate) fn kill_at(&self, deadline: Moment) -> Moment {
        before(deadline, self.margin)
    }
}

fn before(at: Moment, d: Duration) -> Moment {
    Moment::from_nanos(at.as_nanos().saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_inside_the_lease_and_after_a_missed_renewal() {
        let plan = Plan::for_ttl(Duration::from_secs(15));
        let deadline = Moment::from_nanos(100_000_000_000);
        assert_eq!(deadline.since(plan.kill_at(deadline)), Duration::from_millis(1500));
        assert_eq!(deadline.since(plan.term_at(deadline)), Duration::from_millis(4500));
        // Renewals come every third of the lease: two thirds are left then, and one may fail.
        for ttl in [1, 15, 60, 86_400].map(Duration::from_secs) {
            let plan = Plan::for_ttl(ttl);
            assert!(plan.margin + plan.grace < ttl / 3);
        }
        assert_eq!(plan.kill_at(Moment::from_nanos(5)), Moment::from_nanos(0));
    }
}
