//! The part of a lock's line that this client stands in, kept true by counting. Pure: no clock, no network.
//!
//! A waiter holds when no live entry has a smaller `create_revision` than its own. It knows how many there were at the
//! revision of its read, and none can be added: a later entry has a greater one. So it counts the deletions that the
//! watch reports behind that revision, each with the `create_revision` of what was deleted. Whoever dies in the middle is
//! counted like everybody else, and no request is needed however long the line is.
//!
//! What makes the count right (each is a case of the model test below):
//! * a deletion counts only if it is later than the read and what it deleted is older than the waiter: keys are reused;
//! * the watch must have stood before the read. A waiter whose read is older is not counted before another read;
//! * a deletion that the watch reports before the claim's own reply is kept and counted when the waiter takes its stand;
//! * a place's own deletion is looked at before its turn: a lease that ends deletes all its keys at once.

use std::collections::{BTreeMap, VecDeque};

/// How many deletions are kept for claims whose reply is on its way.
const KEPT: usize = 256;

/// One lock's line as one client sees it. `I` identifies a claim.
#[derive(Debug)]
pub(crate) struct Line<I> {
    /// Every deletion behind this revision has been seen; `i64::MAX` while no watch stands.
    known_from: i64,
    /// Deletions behind `known_from`: (revision, create_revision of the deleted), oldest first.
    recent: VecDeque<(i64, i64)>,
    /// By create_revision.
    places: BTreeMap<i64, (I, Stand)>,
    /// Its watch was asked for.
    pub(crate) sent: bool,
    /// A read is on its way.
    pub(crate) reading: bool,
    /// Nobody waited in it when it was last looked over.
    idle: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stand {
    Holds,
    Waits(Count),
    Uncounted,
}

/// How many stood before an entry, by a read at the revision `at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) at: i64,
    pub(crate) ahead: usize,
}

/// What came of a look at the line: (claim, create_revision).
#[derive(Debug)]
pub(crate) struct News<I> {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(I, i64)>,
    /// The entries of these were deleted by somebody else.
    pub(crate) gone: Vec<(I, i64)>,
}

impl<I: Copy> Line<I> {
    pub(crate) fn new() -> Line<I> {
        let (recent, places) = (VecDeque::new(), BTreeMap::new());
        Line { known_from: i64::MAX, recent, places, sent: false, reading: false, idle: false }
    }

    /// A watch stands since this revision: it reports every later deletion.
    pub(crate) fn opened(&mut self, revision: i64) {
        self.known_from = revision;
    }

    /// An entry holds: its deletion is worth telling.
    pub(crate) fn hold(&mut self, id: I, created: i64) {
        self.places.insert(created, (id, Stand::Holds));
    }

    /// An entry waits. A count that is being kept stays.
    pub(crate) fn wait(&mut self, id: I, created: i64, count: Option<Count>) {
        let (_, stand) = self.places.entry(created).or_insert((id, Stand::Uncounted));
        if let (Stand::Uncounted, Some(count)) = (*stand, count.filter(|count| count.at >= self.known_from)) {
            let since = self.recent.iter().filter(|(at, deleted)| *at > count.at && *deleted < created).count();
            *stand = Stand::Waits(Count { ahead: count.ahead.saturating_sub(since), ..count });
        }
    }

    /// The entry is none of this line's business any more.
    pub(crate) fn forget(&mut self, created: i64) {
        self.places.remove(&created);
    }

    /// The watch reports that at `revision` the entry `created` was deleted.
    pub(crate) fn deleted(&mut self, revision: i64, created: i64) {
        for (_, stand) in self.places.range_mut(created + 1..).map(|(_, place)| place) {
            if let Stand::Waits(count) = stand
                && revision > count.at
            {
                count.ahead = count.ahead.saturating_sub(1);
            }
        }
        self.recent.push_back((revision, created));
        if self.recent.len() > KEPT {
            self.known_from = self.recent.pop_front().map_or(self.known_from, |(oldest, _)| oldest);
        }
    }

    /// A read at `revision`: the create_revisions of all entries, ascending.
    pub(crate) fn read(&mut self, revision: i64, live: &[i64]) -> News<I> {
        self.reading = false;
        let mut gone = Vec::new();
        let uncounted = self.places.iter().filter(|(_, place)| place.1 == Stand::Uncounted);
        for (created, id) in uncounted.map(|(created, place)| (*created, place.0)).collect::<Vec<_>>() {
            match live.binary_search(&created) {
                Ok(ahead) => self.wait(id, created, Some(Count { at: revision, ahead })),
                Err(_) if created <= revision => gone.push((id, created)),
                Err(_) => {}
            }
        }
        gone.iter().for_each(|(_, created)| self.forget(*created));
        let mut news = self.news();
        news.gone.append(&mut gone);
        news
    }

    /// Takes stock after the deletions of whole revisions, or a new waiter.
    pub(crate) fn news(&mut self) -> News<I> {
        // A create_revision names one entry for ever, so no revision needs comparing.
        let recent = self.recent.iter().map(|(_, created)| *created);
        let gone = recent.filter_map(|created| self.places.remove(&created).map(|(id, _)| (id, created))).collect();
        let mut granted = Vec::new();
        for (created, (id, stand)) in &mut self.places {
            if matches!(stand, Stand::Waits(count) if count.ahead == 0) {
                *stand = Stand::Holds;
                granted.push((*id, *created));
            }
        }
        News { granted, gone }
    }

    /// A watch stands, a read must count somebody, and none is on its way.
    pub(crate) fn must_be_read(&self) -> bool {
        self.known_from != i64::MAX
            && !self.reading
            && self.places.values().any(|(_, stand)| *stand == Stand::Uncounted)
    }

    /// Looks it over: whether nobody waits in it, now and the last time.
    pub(crate) fn is_over(&mut self) -> bool {
        let idle = self.places.values().all(|(_, stand)| *stand == Stand::Holds);
        std::mem::replace(&mut self.idle, idle) && idle
    }
}

#[cfg(test)]
mod tests;
