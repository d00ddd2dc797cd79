//! Ids for the claims of one client: random numbers of the operating system, drawn many at a time.
//!
//! On some stores an id proves the ownership of a lock, so it must not be guessable: each id is a
//! number of the operating system's generator, and none is computed from another one. A system call
//! for each id cost a tenth of a lock cycle on the store in memory.
//!
//! A copy of the process (a fork, a restored snapshot) has the same numbers in its stock. Therefore
//! a stock is used for 10 ms only, and the instant at which an id is drawn is mixed in. Two copies
//! draw the same id only if they were copied within that time, and then draw at the same
//! nanosecond.

use std::mem::take;
use std::time::Duration;

use crate::backend::claim::ClaimId;
use crate::backend::clock::Moment;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::support::system;

/// The number of ids drawn at a time: Linux gives 256 bytes without an interruption.
const STOCK: usize = 16;

/// The time for which a stock is used.
const FRESH: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct ClaimIds {
    stock: [[u8; 16]; STOCK],
    left: usize,
    drawn: Option<Moment>,
}

impl ClaimIds {
    /// An id that no other claim has.
    pub(crate) fn draw(&mut self, now: Moment) -> Result<ClaimId> {
        if self.left == 0 || self.drawn.is_some_and(|at| now.since(at) > FRESH) {
            let none = |e: getrandom::Error| {
                let text = "the operating system gives no random numbers";
                Error::new(ErrorKind::Unavailable, text).with_source(e.to_string())
            };
            system::random(self.stock.as_flattened_mut()).map_err(none)?;
            (self.left, self.drawn) = (STOCK, Some(now));
        }
        self.left -= 1;
        // The number is removed from the stock.
        let word = u128::from_ne_bytes(take(&mut self.stock[self.left]));
        Ok(ClaimId::of_random(word ^ u128::from(now.as_nanos())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_equal_and_nothing_of_them_stays() {
        let mut ids = ClaimIds::default();
        let now = Moment::from_nanos(7);
        let drawn: HashSet<_> = (0..10 * STOCK).map(|_| ids.draw(now).unwrap()).collect();
        assert_eq!(drawn.len(), 10 * STOCK);
        assert_eq!((ids.left, ids.stock), (0, [[0; 16]; STOCK]));
    }

    /// A fork has the stock of its parent.
    #[test]
    fn copies_of_a_process_draw_different_ids() {
        let mut parent = ClaimIds::default();
        parent.draw(Moment::from_nanos(1)).unwrap();
        let mut child = ClaimIds { ..parent };
        assert_ne!(
            parent.draw(Moment::from_nanos(2)).unwrap(),
            child.draw(Moment::from_nanos(3)).unwrap()
        );
    }

    /// Clones of a machine go on with the same clock.
    #[test]
    fn copies_that_pause_draw_from_stocks_of_their_own() {
        let mut one = ClaimIds::default();
        one.draw(Moment::from_nanos(1)).unwrap();
        let mut other = ClaimIds { ..one };
        let later = Moment::from_nanos(2) + FRESH;
        assert_ne!(one.draw(later).unwrap(), other.draw(later).unwrap());
    }
}
