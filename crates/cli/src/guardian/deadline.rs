//! The times at which a program gets SIGTERM and SIGKILL, so that all of it has ended before
//! another client can hold its lock.

use std::time::Duration;

use leasehold::backend::Moment;
use serde::{Deserialize, Serialize};

/// The time until which a lock is surely held. The times at which its program must end follow from
/// it.
///
/// All times are parts of the lease that the store has granted, which may be shorter than the one
/// that was asked for. The last tenth of it is for killing the program. Before that, the program
/// has three twentieths of it to end by itself. A healthy store must therefore have renewed the
/// lease before a quarter of it is left. ZooKeeper has the longest time between two renewals: its
/// leases fall to 35 % in quiet times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Deadline {
    /// In nanoseconds of CLOCK_BOOTTIME.
    pub(crate) until: u64,
    pub(crate) lease: Duration,
}

impl Deadline {
    pub(crate) fn new(until: Moment, lease: Duration) -> Deadline {
        Deadline {
            until: until.as_nanos(),
            lease,
        }
    }

    /// The part of the lease that is kept for killing the program.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 10).min(Duration::from_secs(5))
    }

    /// The time that the program has from SIGTERM to SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        (self.lease * 3 / 20).min(Duration::from_secs(30))
    }

    /// The interval at which the guardian gets the current deadline: the one that it knows is no
    /// older than this.
    pub(crate) fn tick(&self) -> Duration {
        self.lease / 40
    }

    /// The time at which the program is asked to end (SIGTERM).
    pub(crate) fn term_at(&self) -> Moment {
        before(self.kill_at(), self.grace())
    }

    /// The time at which the program is killed.
    pub(crate) fn kill_at(&self) -> Moment {
        before(Moment::from_nanos(self.until), self.margin())
    }
}

fn before(at: Moment, d: Duration) -> Moment {
    Moment::from_nanos(
        at.as_nanos()
            .saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ends_inside_the_lease() {
        let until = Moment::from_nanos(100_000_000_000);
        let deadline = Deadline::new(until, 20 * SECOND);
        assert_eq!(until.since(deadline.kill_at()), 2 * SECOND);
        assert_eq!(until.since(deadline.term_at()), 5 * SECOND);
        let early = Deadline::new(Moment::from_nanos(5), SECOND);
        assert_eq!(early.kill_at(), Moment::from_nanos(0));
    }

    /// The part of a lease that is left just before a healthy store renews it: on most stores two
    /// thirds, and one third after a renewal that failed. On ZooKeeper it is five eighths of the
    /// session, less a quarter of it, less 2 %, and less the time of three requests.
    #[test]
    fn no_program_ends_before_its_lease_can_have_been_renewed() {
        // ZooKeeper grants at most 4, 10 or 40 s, whatever lease was asked for.
        for longest in [4, 10, 40, 86_400].map(|n| n * SECOND) {
            for asked in [longest / 2, longest, longest * 2, longest * 10] {
                let granted = asked.min(longest);
                let deadline = Deadline::new(Moment::from_nanos(0) + granted, granted);
                let ends = deadline.margin() + deadline.grace() + deadline.tick();
                assert!(ends < granted / 3, "{asked:?} of {longest:?}");
                let left = granted * 35 / 100;
                // A busy machine and a slow network have at least a fourteenth of the lease.
                assert!(
                    left - ends >= (granted / 14),
                    "{asked:?} of {longest:?}: {left:?}, {ends:?}"
                );
            }
        }
    }
}
