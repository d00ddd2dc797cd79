//! Fencing tokens: one counter for the whole file, never below the wall clock, and never far above it.

use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::backend::Raises;

/// The raises that the store supports: tokens of holds, up to a limit that is far below the
/// greatest token.
pub(crate) const RAISES: Raises = Raises::Holds(FencingToken::new(1 << 62));

/// The number of microseconds by which the last token may be ahead of the wall clock. A `fast`
/// grant asks for up to 1,024 tokens at once, and gets as many as there are below this limit.
/// Single tokens never get ahead, since a transaction takes longer than a microsecond.
const AHEAD: i64 = 5000;

/// The tokens of one grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tokens {
    pub(crate) first: i64,
    pub(crate) count: u32,
}

impl Tokens {
    /// Returns as many tokens as are asked for, or fewer, but at least one. With a floor they are
    /// at least the floor, whatever the clock says.
    pub(crate) fn after(last: i64, floor: i64, wall: Duration, asked: u32) -> Tokens {
        let first = last
            .saturating_add(1)
            .max(if floor > 0 { floor } else { micros(wall) });
        let left = above(wall).saturating_sub(first);
        Tokens {
            first,
            count: u32::try_from(left).unwrap_or(0).clamp(1, asked.max(1)),
        }
    }

    pub(crate) fn last(self) -> i64 {
        self.first.saturating_add(i64::from(self.count) - 1)
    }
}

/// A number above every token that was drawn until now, also in files that are lost, unless the
/// wall clock stepped back.
pub(crate) fn above(wall: Duration) -> i64 {
    micros(wall).saturating_add(AHEAD)
}

fn micros(wall: Duration) -> i64 {
    i64::try_from(wall.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files are lost again and again, and the grants come as fast as transactions can be.
    #[test]
    fn they_rise_across_lost_files_however_many_are_asked_for() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut wall = Duration::from_secs(1_800_000_000);
        let mut greatest = 0;
        let mut most = 0;
        let mut last = 0;
        for _ in 0..10_000 {
            wall += Duration::from_micros(random.u64(1..40));
            if random.u8(..) == 0 {
                last = above(wall); // a new file
            }
            let tokens = Tokens::after(last, 0, wall, if random.bool() { 1024 } else { 1 });
            assert!(tokens.first > greatest, "{tokens:?} after {greatest}");
            last = tokens.last();
            (greatest, most) = (last, most.max(tokens.count));
            assert!(last <= above(wall) + 1, "{tokens:?} at {wall:?}");
        }
        assert!(most > 500, "at most {most} at once");
    }

    #[test]
    fn a_clock_that_stepped_back_gives_one_at_a_time() {
        let before = Duration::from_secs(2000);
        let now = Duration::from_secs(1000);
        let tokens = Tokens::after(above(before), 0, now, 1024);
        assert_eq!(
            tokens,
            Tokens {
                first: above(before) + 1,
                count: 1
            }
        );
        assert_eq!(
            Tokens::after(tokens.last(), 0, before + Duration::from_secs(1), 1024).count,
            1024
        );
        assert_eq!(Tokens::after(i64::MAX, 0, now, 64).last(), i64::MAX);
    }

    #[test]
    fn a_floor_counts_whatever_the_clock_says() {
        let wall = Duration::from_secs(1);
        assert_eq!(
            [(10, 1000), (2000, 1000), (10, 0)]
                .map(|(last, floor)| Tokens::after(last, floor, wall, 1).first),
            [1000, 2001, 1_000_000]
        );
    }
}
