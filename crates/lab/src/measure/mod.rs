//! What the lab and the benchmarks in `benches/` measure with. It is for no other user.

mod turns;
pub mod units;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use turns::{Result, Seen, Subject, Turns, turns};

/// The processor time of this process.
pub fn processor_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        t.tv_sec.unsigned_abs(),
        u32::try_from(t.tv_nsec).unwrap_or_default(),
    )
}

/// Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 if all got the same, 1/n if one got all.
pub fn jain(shares: impl IntoIterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (count * squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_knows_equals_and_hogs() {
        assert_eq!(jain([5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain([9.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain([0.0, 0.0]), 1.0);
    }
}
