//! The part of a lock's line that this client waits in, kept true by counting. Pure: no clock, no network.
//!
//! A waiter holds when no live entry has a smaller `create_revision` than its own. It knows how many there were at the
//! revision of its read, and none can be added: a later entry has a greater one. So it counts the deletions that the
//! watch reports behind that revision, each with the `create_revision` of what was deleted. Whoever dies in the middle is
//! counted like everybody else, and no request is needed however long the line is.
//!
//! What makes the count right (each is a case of the model test below):
//! * a deletion counts only if it is later than the read and what it deleted is older than the waiter: keys are reused;
//! * the watch must have stood before the read. A waiter whose read is older is not settled, and another read settles it;
//! * a deletion that the watch reports before the claim's own reply is kept and counted when the waiter takes its stand;
//! * the deletions of one revision count together, and the waiter's own is looked at first: a lease that ends deletes all
//!   its keys at once.

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
    waiting: BTreeMap<i64, Wait<I>>,
    /// What was granted while the line was watched, by create_revision.
    granted: BTreeMap<i64, I>,
}

#[derive(Clone, Debug)]
struct Wait<I> {
    id: I,
    count: Count,
    settled: bool,
}

/// How many stood before an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    /// The revision of the read.
    pub(crate) at: i64,
    /// Live entries with a create_revision below `below`.
    pub(crate) ahead: u64,
    /// The entry's own create_revision; less if the read was cut off, so that `ahead` is not all.
    pub(crate) below: i64,
}

/// What came of a look at the line.
#[derive(Debug)]
pub(crate) struct News<I> {
    /// These hold: (claim, create_revision).
    pub(crate) granted: Vec<(I, i64)>,
    /// These waited, and their entries are gone.
    pub(crate) gone: Vec<I>,
    /// These held, and their entries were deleted by somebody else: (claim, create_revision).
    pub(crate) deleted: Vec<(I, i64)>,
    /// A read must settle somebody.
    pub(crate) read: bool,
}

impl<I: Copy> Line<I> {
    pub(crate) fn new() -> Line<I> {
        Line { known_from: i64::MAX, recent: VecDeque::new(), waiting: BTreeMap::new(), granted: BTreeMap::new() }
    }

    /// A watch stands since this revision: it reports every later deletion.
    pub(crate) fn opened(&mut self, revision: i64) {
        self.known_from = revision;
        self.recent.clear();
        self.unsettle();
    }

    /// The watch is gone.
    pub(crate) fn closed(&mut self) {
        self.opened(i64::MAX);
    }

    fn unsettle(&mut self) {
        self.waiting.values_mut().for_each(|wait| wait.settled = false);
    }

    /// An entry waits. Whatever was known of it is forgotten.
    pub(crate) fn wait(&mut self, id: I, created: i64, count: Count) {
        let mut wait = Wait { id, count, settled: count.at >= self.known_from };
        // Its own deletion is kept for `news`, which looks there first.
        if wait.settled {
            for (revision, deleted) in &self.recent {
                wait.count.deleted(*revision, *deleted);
            }
        }
        self.waiting.insert(created, wait);
    }

    /// An entry holds: its deletion is worth telling.
    pub(crate) fn hold(&mut self, id: I, created: i64) {
        self.waiting.remove(&created);
        self.granted.insert(created, id);
    }

    /// The entry is none of this line's business any more.
    pub(crate) fn forget(&mut self, created: i64) {
        self.waiting.remove(&created);
        self.granted.remove(&created);
    }

    /// The watch reports that at `revision` the entry `created` was deleted; `None` if it cannot say which.
    pub(crate) fn deleted(&mut self, revision: i64, created: Option<i64>) {
        if revision <= self.known_from {
            return;
        }
        let Some(created) = created else {
            return self.opened(revision);
        };
        self.waiting.values_mut().filter(|wait| wait.settled).for_each(|wait| wait.count.deleted(revision, created));
        self.recent.push_back((revision, created));
        if self.recent.len() > KEPT {
            self.known_from = self.recent.pop_front().map_or(self.known_from, |(oldest, _)| oldest);
        }
    }

    /// A read at `revision` of the entries up to `youngest`: the create_revisions of the oldest, ascending; `all` unless it
    /// was cut off. Answers whose entries are gone.
    pub(crate) fn read(&mut self, revision: i64, youngest: i64, oldest: &[i64], all: bool) -> Vec<I> {
        let last = oldest.last().copied().unwrap_or(0);
        let (mut gone, mut stands) = (Vec::new(), Vec::new());
        for (created, wait) in self.waiting.range(..=youngest) {
            let place = oldest.partition_point(|other| other < created);
            let known = all || *created <= last;
            if known && oldest.get(place) != Some(created) {
                gone.push((*created, wait.id));
            } else if !wait.settled || wait.count.at < revision {
                let count = Count::of(revision, oldest, all, *created);
                stands.push((*created, wait.id, count));
            }
        }
        gone.iter().for_each(|(created, _)| self.forget(*created));
        stands.into_iter().for_each(|(created, id, count)| self.wait(id, created, count));
        gone.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes stock after all deletions of one revision, a read, or a new waiter.
    pub(crate) fn news(&mut self) -> News<I> {
        let mut news = News { granted: Vec::new(), gone: Vec::new(), deleted: Vec::new(), read: false };
        // A create_revision names one entry for ever, so no revision needs comparing.
        for (_, created) in &self.recent {
            news.gone.extend(self.waiting.remove(created).map(|wait| wait.id));
            news.deleted.extend(self.granted.remove(created).map(|id| (id, *created)));
        }
        let in_turn =
            |created: &i64, wait: &Wait<I>| wait.settled && wait.count.ahead == 0 && wait.count.below == *created;
        let due: Vec<_> = self.waiting.iter().filter(|(c, w)| in_turn(c, w)).map(|(c, w)| (w.id, *c)).collect();
        due.iter().for_each(|(id, created)| self.hold(*id, *created));
        news.granted = due;
        let open = self.known_from != i64::MAX;
        news.read = open && self.waiting.values().any(|wait| !wait.settled || wait.count.ahead == 0);
        news
    }

    /// The greatest create_revision that waits.
    pub(crate) fn youngest(&self) -> Option<i64> {
        self.waiting.last_key_value().map(|(created, _)| *created)
    }
}

impl Count {
    /// What a read at `revision` tells about the entry `created`. Of a read that was cut off only what stands before the
    /// last one read is counted, so that `below` can never be taken for the entry's own number.
    pub(crate) fn of(revision: i64, oldest: &[i64], all: bool, created: i64) -> Count {
        let below = oldest.last().copied().filter(|last| !all && *last < created).unwrap_or(created);
        Count { at: revision, ahead: oldest.partition_point(|other| *other < below) as u64, below }
    }

    fn deleted(&mut self, revision: i64, created: i64) {
        if revision > self.at && created < self.below {
            self.ahead = self.ahead.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
