//! How many requests that renew may be under way at once: as many as the store bears.
//!
//! One more for each that is answered in time, half as many when some are late. A late answer says
//! nothing by itself: of a store that is far away all answers are late, and it may bear many at a
//! time; a store that does one after the other has too many already. So how long the quickest of
//! them took decides. If late answers always made room for more, a busy store would be asked again
//! and again for what waits in its line, and would lose all locks of a client at half of what it bears.

use std::time::Duration;

use crate::seam::clock::Moment;

/// At most. Those that may not wait any longer go all the same, once nothing moves.
const BATCHES: usize = 16;

pub(super) struct Width {
    most: usize,
    /// When that was last made less.
    narrowed: Option<Moment>,
    /// How long the quickest answer took, as far as that is still so.
    quickest: Duration,
}

impl Width {
    pub(super) fn new() -> Width {
        Width { most: BATCHES, narrowed: None, quickest: Duration::MAX }
    }

    /// How many more may go, beside those that are under way and not late.
    pub(super) fn room(&self, under_way: usize) -> usize {
        self.most.saturating_sub(under_way)
    }

    /// The store has a new connection, or its server goes by other terms.
    pub(super) fn begin_anew(&mut self) {
        *self = Width { narrowed: self.narrowed, ..Width::new() };
    }

    /// One was answered, so long after it was sent.
    pub(super) fn answered(&mut self, took: Duration, late: bool) {
        // One at a time waits in no line of ours: if that is late again and again, the store has become slower.
        let slower = if late && self.most == 1 { self.quickest / 4 } else { Duration::ZERO };
        self.quickest = took.min(self.quickest.saturating_add(slower));
        if !late || took <= self.quickest.saturating_mul(2) {
            self.most = BATCHES.min(self.most + 1);
        }
    }

    /// One is late. Those that were in flight together are late together, by one cause.
    pub(super) fn late(&mut self, sent: Moment, now: Moment) {
        if self.narrowed.is_none_or(|at| at <= sent) {
            (self.most, self.narrowed) = (1.max(self.most / 2), Some(now));
        }
    }
}
