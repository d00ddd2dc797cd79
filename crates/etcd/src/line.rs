//! One lock's line as a client sees it that waits in it, or observes it: a copy, read once its watch stands, and kept true by
//! what the watch says. Pure: no clock, no network.
//!
//! A waiter holds when the copy knows its place and [`admit`] lets it in behind the entries with a smaller
//! `create_revision`. None can be added there: a later entry has a greater one. So whoever dies in the middle is struck from
//! the copy like everybody else, and no request is needed however long the line is.
//!
//! What makes the copy right (each is a case of the model test below):
//! * the watch stands before the line is read. What it says meanwhile is kept, and what the read has seen is not believed
//!   again: keys are reused, and the deletion of an entry must not strike the next one of the same key;
//! * a place of which the copy cannot know yet waits: its own put is still to come;
//! * all that happened at one revision is taken in before anybody's turn: a lease that ends deletes all its keys at once;
//! * a place holds only if as many stood before it when it came as its own transaction counted. So an entry that the watch
//!   failed to tell of lets nobody in too early.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;

use leasehold_core::seam::{Admission, ClaimId, Mode, admit};

/// What the watch says of one key.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) key: Vec<u8>,
    /// The entry's create_revision and mode; `None` if it was deleted.
    pub(crate) put: Option<(i64, Mode)>,
}

/// One lock's line as one client sees it.
#[derive(Default, Debug)]
pub(crate) struct Line {
    /// When it was read; before that, what the watch said is kept in `early`.
    read_at: Option<i64>,
    early: Vec<Event>,
    /// Up to where the copy knows all.
    revision: i64,
    /// By create_revision.
    entries: BTreeMap<i64, Entry>,
    keys: HashMap<Vec<u8>, i64>,
    /// This client's own, by create_revision.
    places: BTreeMap<i64, (ClaimId, Stand)>,
    stirred: bool,
    /// Its watch was asked for.
    pub(crate) sent: bool,
    /// Nobody waited in it when it was last looked over.
    idle: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mode: Mode,
    /// How many stood before it when it came; `None` if it was read.
    ahead: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stand {
    Holds,
    /// Behind so many, as its own transaction counted.
    Waits(Option<i64>),
}

/// What came of a look at the line: (claim, create_revision).
#[derive(Default, Debug)]
pub(crate) struct News {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, i64)>,
    /// The entries of these were deleted by somebody else.
    pub(crate) gone: Vec<(ClaimId, i64)>,
    /// Its holders, or their labels, may have changed.
    pub(crate) stirred: bool,
    /// The copy is wrong.
    pub(crate) wrong: bool,
}

impl Line {
    /// One of ours has this place.
    pub(crate) fn place(&mut self, id: ClaimId, created: i64, stand: Stand) {
        let place = self.places.entry(created).or_insert((id, stand));
        if stand == Stand::Holds {
            place.1 = stand;
        }
    }

    /// The place is none of this line's business any more.
    pub(crate) fn forget(&mut self, created: i64) {
        self.places.remove(&created);
    }

    /// The whole line, read at `revision` while the watch stood.
    pub(crate) fn read(&mut self, revision: i64, live: impl Iterator<Item = (Vec<u8>, i64, Mode)>) {
        (self.read_at, self.revision, self.stirred) = (Some(revision), revision, true);
        for (key, created, mode) in live {
            self.keys.insert(key, created);
            self.entries.insert(created, Entry { mode, ahead: None });
        }
        take(&mut self.early).into_iter().for_each(|event| self.hear(event));
    }

    /// The watch says this.
    pub(crate) fn hear(&mut self, event: Event) {
        match self.read_at {
            None => self.early.push(event),
            Some(read_at) if event.revision > read_at => self.apply(event),
            Some(_) => {}
        }
    }

    fn apply(&mut self, Event { revision, key, put }: Event) {
        self.revision = revision;
        let newcomer = put.filter(|(created, _)| self.keys.get(&key) != Some(created));
        if put.is_none() || newcomer.is_some() {
            self.keys.remove(&key).map(|deleted| self.entries.remove(&deleted));
        }
        let ahead = i64::try_from(self.entries.len()).ok();
        if let Some((created, mode)) = put {
            self.keys.insert(key, created);
            self.entries.entry(created).or_insert(Entry { mode, ahead }).mode = mode;
        }
        self.stirred |= newcomer.is_none_or(|(created, mode)| self.lets_in(created, mode));
    }

    /// Takes stock after all changes of a revision, or a new place.
    pub(crate) fn news(&mut self) -> News {
        let mut news = News { stirred: take(&mut self.stirred), ..News::default() };
        if self.read_at.is_none() {
            return news;
        }
        let mut places = take(&mut self.places);
        places.retain(|created, (id, _)| {
            let there = *created > self.revision || self.entries.contains_key(created);
            if !there {
                news.gone.push((*id, *created));
            }
            there
        });
        // Whoever stands behind one that is not let in is not let in either.
        for (created, (id, stand)) in &mut places {
            let (Stand::Waits(counted), Some(entry)) = (*stand, self.entries.get(created)) else { continue };
            news.wrong = counted.zip(entry.ahead).is_some_and(|(counted, seen)| counted != seen);
            if news.wrong || !self.lets_in(*created, entry.mode) {
                break;
            }
            *stand = Stand::Holds;
            news.granted.push((*id, *created));
        }
        self.places = places;
        news
    }

    fn lets_in(&self, created: i64, mode: Mode) -> bool {
        let before: Vec<Mode> = self.entries.range(..created).map(|(_, entry)| entry.mode).collect();
        admit(&before, mode) == Admission::In
    }

    /// Looks it over: whether nobody waits in it, now and the last time.
    pub(crate) fn is_over(&mut self) -> bool {
        let idle = self.read_at.is_some() && self.places.values().all(|(_, stand)| *stand == Stand::Holds);
        std::mem::replace(&mut self.idle, idle) && idle
    }
}

/// How many hold in a line of these: always its first ones, for behind one that is not let in nobody is.
pub(crate) fn holders(modes: &[Mode]) -> usize {
    (0..modes.len()).take_while(|i| admit(&modes[..*i], modes[*i]) == Admission::In).count()
}

#[cfg(test)]
mod tests;
