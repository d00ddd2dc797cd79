//! When something must be done about which claim: one entry each, by the number under which it is kept.
//!
//! All holds of a client come up together, and their entries leave together: to take them out one by
//! one would be most of what a renewal costs here.

use std::collections::BTreeSet;
use std::time::Duration;

use super::kept::{Kept, NEVER};
use crate::engine::claim_state::Seen;
use crate::seam::clock::Moment;

#[derive(Default)]
pub(super) struct Agenda {
    all: BTreeSet<(Moment, u64)>,
    /// No lease is longer.
    longest: Duration,
    /// How many of them are holds, whose end is to be seen in time.
    pub(super) holds: usize,
    /// When the store last answered a request that renews.
    pub(super) moved: Option<Moment>,
}

impl Agenda {
    /// When the first one comes up.
    pub(super) fn first(&self) -> Option<Moment> {
        self.all.first().map(|(at, _)| *at)
    }

    /// Takes out one that comes up by `now`: its number.
    pub(super) fn pop(&mut self, now: Moment) -> Option<u64> {
        self.all.first().filter(|(at, _)| *at <= now)?;
        self.all.pop_first().map(|(_, id)| id)
    }

    /// Enters this one where it belongs, and says when it comes up.
    pub(super) fn enter(&mut self, id: u64, kept: &mut Kept, seen: &Seen) -> Moment {
        if seen.ends_at().is_some() && !std::mem::replace(&mut kept.is_hold, true) {
            self.holds += 1;
        }
        self.longest = self.longest.max(seen.ttl);
        let at = kept.comes_up(seen, self.moved);
        self.put(id, kept, at);
        at
    }

    /// Enters this one, which waits for a request, unless it is entered already.
    pub(super) fn wait(&mut self, id: u64, kept: &mut Kept) {
        if kept.at == NEVER {
            self.put(id, kept, kept.waits_until());
        }
    }

    /// It has no entry from now on.
    pub(super) fn leave(&mut self, id: u64, kept: &mut Kept) {
        self.put(id, kept, NEVER);
    }

    fn put(&mut self, id: u64, kept: &mut Kept, at: Moment) {
        let before = std::mem::replace(&mut kept.at, at);
        if before == at {
            return;
        }
        if before != NEVER {
            self.all.remove(&(before, id));
        }
        if at != NEVER {
            self.all.insert((at, id));
        }
    }

    /// It is kept no more. `last`: nothing is.
    pub(super) fn forget(&mut self, id: u64, kept: &mut Kept, last: bool) {
        self.leave(id, kept);
        self.holds -= usize::from(kept.is_hold);
        if last {
            self.longest = Duration::ZERO;
        }
    }

    /// Takes out what may be renewed together with others now: `joins` takes it, unless it may not. Whatever may comes up within a
    /// sixth of its lease.
    pub(super) fn take_joining(&mut self, now: Moment, mut joins: impl FnMut(u64) -> bool) {
        let mut later = self.all.split_off(&(now + self.longest / 6, u64::MAX));
        let soon = std::mem::take(&mut self.all);
        self.all = soon.into_iter().filter(|(_, id)| !joins(*id)).collect();
        if self.all.len() < later.len() {
            std::mem::swap(&mut self.all, &mut later);
        }
        self.all.extend(later);
    }
}
