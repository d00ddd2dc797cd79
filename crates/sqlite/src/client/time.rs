//! Times in the form of the rows, and the limits of waiting for other writers.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, SystemTime};

use leasehold_core::backend::Moment;

/// The time for which a request without a lease may wait for other writers. It is also the longest
/// for any other request.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

thread_local! {
    /// The moment until which this thread's connection waits for others. It is thread-local, since
    /// SQLite calls a handler that takes no state.
    static DEADLINE: Cell<Moment> = const { Cell::new(Moment::from_nanos(0)) };
}

/// The present moment on CLOCK_BOOTTIME, in nanoseconds.
pub(crate) fn now() -> i64 {
    Moment::now().as_nanos() as i64
}

pub(crate) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

/// The time of the wall clock since its epoch, for people and for tokens.
pub(crate) fn wall() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// The moment until which a request with this lease may wait for other writers.
pub(crate) fn limit(lease: Option<Duration>) -> Moment {
    Moment::now()
        + lease.map_or(LONGEST_WAIT, |ttl| {
            (ttl / 6).clamp(Duration::from_millis(50), LONGEST_WAIT)
        })
}

/// Sets the moment until which statements of this thread wait for other writers.
pub(crate) fn wait_until(deadline: Moment) {
    DEADLINE.set(deadline);
}

/// The moment until which statements of this thread wait for other writers.
pub(crate) fn deadline() -> Moment {
    DEADLINE.get()
}

/// Makes statements of this thread not wait for other writers.
pub(crate) fn wait_until_now() {
    DEADLINE.set(Moment::from_nanos(0));
}

/// The busy handler. It sleeps for short random times: SQLite's own sleeps grow to a tenth of a
/// second, and a client that sleeps that long starves. The sleeps grow with the number of tries,
/// since the attempts of many waiters would otherwise cost more than their work.
pub(crate) fn wait(tries: i32) -> bool {
    let goes_on = Moment::now() < DEADLINE.get();
    if goes_on {
        let longer = (1 + tries.unsigned_abs() / 8).min(8);
        thread::sleep(Duration::from_micros(fastrand::u64(50..200)) * longer);
    }
    goes_on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_sixth_of_its_lease_within_bounds() {
        let ms = Duration::from_millis;
        for (lease, wait) in [
            (None, LONGEST_WAIT),
            (Some(ms(6000)), ms(1000)),
            (Some(ms(60)), ms(50)),
            (Some(ms(600_000)), LONGEST_WAIT),
        ] {
            let before = Moment::now();
            let until = limit(lease);
            assert!(
                until >= before + wait && until <= Moment::now() + wait,
                "{lease:?}"
            );
        }
    }

    #[test]
    fn a_statement_waits_until_its_deadline() {
        wait_until(Moment::now() + Duration::from_secs(60));
        assert!(wait(0) && wait(100));
        wait_until_now();
        assert!(!wait(0));
        wait_until(Moment::now());
        assert!(!wait(0));
    }

    #[test]
    fn times_are_those_of_the_machine() {
        let before = Moment::now().as_nanos() as i64;
        let at = now();
        assert!(before <= at && at <= Moment::now().as_nanos() as i64);
        assert!(wall() > Duration::from_secs(1_577_836_800), "2020");
        assert_eq!(
            (nanos(Duration::from_micros(7)), nanos(Duration::MAX)),
            (7000, i64::MAX)
        );
    }
}
