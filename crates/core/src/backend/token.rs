//! The fencing token: the number that lets a resource refuse a stale holder.
//!
//! The token is its own type, so that it is not mixed up with another number on its way to the
//! resource.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A number that a resource compares: for one name, a later conflicting grant has a strictly
/// greater token.
///
/// Send it to the resource with each write. The resource keeps the greatest token it has seen, and
/// refuses a smaller one. That protects the data from a holder that was paused past its lease
/// (Burrows, *The Chubby lock service*, OSDI 2006: "sequencer").
///
/// Tokens fit an SQL `BIGINT`: they never exceed `i64::MAX`. They are not consecutive, and say
/// nothing about time. Tokens of different names or stores cannot be compared. It depends on the
/// store which faults their order survives: see [`Fencing`](crate::Fencing).
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let guard = store.lock("orders/42").acquire().await?;
/// let sql = "UPDATE orders SET state = $1, token = $2 WHERE id = 42 AND token <= $2";
/// # fn execute(_: &str, _: (&str, i64)) -> u64 { 1 }
/// let rows = execute(sql, ("paid", guard.fencing_token().as_i64()));
/// assert_eq!(rows, 1, "a later holder has written already");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token with this number: for a token that was sent over the network or stored. A number
    /// above `i64::MAX` becomes `i64::MAX`.
    pub const fn new(number: u64) -> FencingToken {
        if number > i64::MAX as u64 {
            FencingToken(i64::MAX as u64)
        } else {
            FencingToken(number)
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number, for an SQL `BIGINT` and other signed columns. It is never negative.
    pub const fn as_i64(self) -> i64 {
        self.0 as i64
    }
}

/// The number of turns of a place on a store that numbers places when they are *taken*. A number
/// drawn later, at a turn, would exceed those that the places behind it already have. The turns are
/// therefore told apart by the low bits of the token, below the number of the place.
pub(crate) const TURNS_OF_A_PLACE: u32 = 256;

/// For a store that numbers places when they are taken: the token of the first turn of the place
/// with this number. [`Grant::of_place`](crate::backend::Grant::of_place) reserves 256 turns.
///
/// # Examples
///
/// ```
/// use leasehold_core::backend::{place_of_token, token_of_place};
///
/// let first = token_of_place(7);
/// assert_eq!(first.get(), 7 << 8);
/// assert_eq!(place_of_token(first), 7);
/// ```
pub fn token_of_place(number: i64) -> FencingToken {
    FencingToken::new(
        number
            .unsigned_abs()
            .saturating_mul(TURNS_OF_A_PLACE.into()),
    )
}

/// The number of the place to which this token belongs, whichever of its turns it is.
pub const fn place_of_token(token: FencingToken) -> i64 {
    token.as_i64() / TURNS_OF_A_PLACE as i64
}

/// The number of tokens by which a store that numbers places when they are taken is raised beyond
/// the need, so that it is raised rarely: one day of a clock whose microseconds are tokens.
pub const RAISED_AHEAD: u64 = 86_400_000_000;

/// For a store that numbers places when they are taken, and adds `by` to the numbers of its server:
/// returns the number that it must add so that the tokens of all places after the server's number
/// `last` exceed `number`. The tokens are then [`RAISED_AHEAD`] greater than needed. Returns `None`
/// if they exceed it already.
///
/// # Examples
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_core::backend::{raised_places, token_of_place};
///
/// let (number, last) = (FencingToken::new(1 << 40), 7);
/// let by = raised_places(0, last, number).unwrap();
/// assert!(token_of_place(last + 1 + by) > number);
/// assert_eq!(raised_places(by, last, number), None);
/// ```
pub fn raised_places(by: i64, last: i64, number: FencingToken) -> Option<i64> {
    let needed = place_of_token(number) - last;
    (by < needed).then(|| needed + place_of_token(FencingToken::new(RAISED_AHEAD)))
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(s: &str) -> Result<FencingToken, ParseIntError> {
        s.parse::<i64>().and_then(|_| s.parse()).map(FencingToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_of_a_place_leads_to_it_and_to_no_other() {
        for number in [0, 1, 77, i64::MAX / 256 - 1] {
            let first = token_of_place(number).get();
            for (turn, place) in [(0, number), (255, number), (256, number + 1)] {
                assert_eq!(place_of_token(FencingToken(first + turn)), place);
            }
        }
    }

    #[test]
    fn each_later_place_exceeds_the_number_and_nothing_is_lowered() {
        for (by, last, number) in [
            (0, 1, 0),
            (0, 1, 512),
            (0, 1, 511),
            (0, 7, 1 << 62),
            (5, 9, 15 << 8),
            (5, 9, 14 << 8),
            (1 << 54, 1, 99),
        ] {
            let raised = raised_places(by, last, FencingToken::new(number));
            let next = token_of_place(raised.unwrap_or(by) + last + 1).get();
            assert!(next > number, "{by} {last} {number}: {next}");
            assert!(raised.is_none_or(|raised| raised > by + 86_400_000_000 / 256));
            assert_eq!(
                raised.is_none(),
                token_of_place(by + last + 1).get() > number,
                "as rarely as can be"
            );
        }
    }

    #[test]
    fn parses_what_it_prints_and_refuses_the_rest() {
        assert_eq!("17".parse::<FencingToken>().unwrap(), FencingToken::new(17));
        assert!("-1".parse::<FencingToken>().is_err());
        assert!(u64::MAX.to_string().parse::<FencingToken>().is_err());
        assert_eq!(FencingToken::new(u64::MAX).as_i64(), i64::MAX);
    }
}
