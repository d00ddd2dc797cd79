//! The moments when the kept claims need attention: one entry per claim, with the number under
//! which it is kept.
//!
//! All holds of a client come up together, and their entries leave together: removing them one by
//! one would be most of the cost of a renewal here.

use std::collections::BTreeSet;
use std::time::Duration;

use super::kept::{Kept, NEVER};
use crate::backend::clock::Moment;
use crate::engine::claim_state::RenewalFacts;

#[derive(Default)]
pub(super) struct Agenda {
    all: BTreeSet<(Moment, u64)>,
    /// The longest lease among them.
    longest: Duration,
    /// The number of holds among them. Their ends must be seen in time.
    pub(super) holds: usize,
    /// The moment when the store last answered a request that renews.
    pub(super) moved: Option<Moment>,
}

impl Agenda {
    /// The moment when the first entry comes up.
    pub(super) fn first(&self) -> Option<Moment> {
        self.all.first().map(|(at, _)| *at)
    }

    /// Removes an entry that comes up by `now`, and returns its number.
    pub(super) fn pop(&mut self, now: Moment) -> Option<u64> {
        self.all.first().filter(|(at, _)| *at <= now)?;
        self.all.pop_first().map(|(_, id)| id)
    }

    /// Enters the claim at the moment when it comes up, and returns that moment.
    pub(super) fn enter(&mut self, id: u64, kept: &mut Kept, seen: &RenewalFacts) -> Moment {
        if seen.ends_at().is_some() && !std::mem::replace(&mut kept.is_hold, true) {
            self.holds += 1;
        }
        self.longest = self.longest.max(seen.ttl);
        let at = kept.comes_up(seen, self.moved);
        self.put(id, kept, at);
        at
    }

    /// Enters a claim that waits for a request, unless it has an entry already.
    pub(super) fn wait(&mut self, id: u64, kept: &mut Kept) {
        if kept.at == NEVER {
            self.put(id, kept, kept.waits_until());
        }
    }

    /// Removes the entry of the claim.
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

    /// Forgets a claim that is no longer kept. `last` is true if it was the last one.
    pub(super) fn forget(&mut self, id: u64, kept: &mut Kept, last: bool) {
        self.leave(id, kept);
        self.holds -= usize::from(kept.is_hold);
        if last {
            self.longest = Duration::ZERO;
        }
    }

    /// Removes the entries that may be renewed together with others now. `joins` takes an entry and
    /// returns true, or returns false if it may not be renewed yet. An entry that may be renewed
    /// comes up within a sixth of its lease.
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
