//! One lock's line: this client's own claims in it, and, while one of them waits or somebody observes, a copy of all of it, read
//! once when its watch stands and kept true by what the watch says. Pure: no clock, no network.
//!
//! A waiter holds when the copy knows its entry and [`admit`](leasehold_core::seam::admit) lets it in behind those with a
//! smaller `create_revision`. None can be added there: a later entry has a greater one. So whoever dies in the middle is struck
//! from the copy like everybody else, and no request is needed however long the line is.
//!
//! What makes the copy right (each is a case of the model test below):
//! * the watch stands before the line is read. What it says meanwhile is kept, and what the read has seen is not believed
//!   again: keys are reused, and the deletion of an entry must not strike the next one of the same key;
//! * an entry of ours of which the copy cannot know yet waits: its own put is still to come;
//! * all that happened at one revision is taken in before anybody's turn: a lease that ends deletes all its keys at once;
//! * a claim holds only if as many stood before it when it came as its own transaction counted. So an entry that the watch
//!   failed to tell of lets nobody in too early.

use std::mem::take;
use std::sync::{Arc, Weak};

use leasehold_core::seam::{ClaimId, Grant, Mode, Moment, Place, Validity, holding};
use leasehold_etcd_client::{LeasedKey, Session};

/// One claim of ours, from just before its first request until its release is confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) id: ClaimId,
    pub(crate) key: Arc<LeasedKey>,
    /// The key's create_revision, 0 while there is none that is known.
    pub(crate) created: i64,
    /// How many stood before it when it came, if its own transaction counted them.
    pub(crate) ahead: Option<i64>,
    pub(crate) granted: bool,
    /// It is being released: what becomes of its key is no news.
    pub(crate) leaving: bool,
    /// When it was last claimed or renewed.
    pub(crate) tended: Moment,
}

impl Own {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.key.session
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(self.key.path.clone())
    }

    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.session().proven().min(self.tended), self.session().ttl)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::of_place(self.place(), self.created, self.validity())
    }

    pub(crate) fn waits(&self) -> bool {
        !self.granted && !self.leaving
    }

    /// Its key has this create_revision; 0 if there is none (any more).
    pub(crate) fn stands_at(&mut self, created: i64) {
        if self.created != created {
            (self.created, self.ahead, self.granted) = (created, None, false);
        }
    }
}

/// What this client knows of a line.
#[derive(Default, Debug)]
pub(crate) struct Line {
    pub(crate) own: Vec<Own>,
    /// While it is watched, or will be.
    pub(crate) copy: Option<Box<Copy>>,
    /// Alive as long as somebody observes.
    pub(crate) observers: Weak<()>,
}

/// All entries of a line.
#[derive(Default, Debug)]
pub(crate) struct Copy {
    /// When it was read; before that, what the watch said is kept in `early`.
    pub(crate) read_at: Option<i64>,
    early: Vec<Event>,
    /// Up to where it knows all.
    revision: i64,
    /// By create_revision.
    entries: Vec<Entry>,
    /// What observers have been told of: see [`Copy::holders`].
    face: Option<Vec<(i64, i64)>>,
}

#[derive(Debug)]
struct Entry {
    key: Vec<u8>,
    created: i64,
    /// When its value was last written.
    revision: i64,
    mode: Mode,
    /// How many stood before it when it came; `None` if it was read.
    ahead: Option<i64>,
}

/// What the watch says of one key.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) key: Vec<u8>,
    /// The entry's create_revision and mode; `None` if it was deleted.
    pub(crate) put: Option<(i64, Mode)>,
}

/// What came of a look at the line.
#[derive(Default, Debug)]
pub(crate) struct News {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, Grant)>,
    /// As these were, before somebody deleted their keys.
    pub(crate) gone: Vec<Own>,
    /// The holders, or their labels, may be others.
    pub(crate) stirred: bool,
    /// The copy is wrong.
    pub(crate) wrong: bool,
}

impl Line {
    pub(crate) fn own(&mut self, id: ClaimId) -> Option<&mut Own> {
        self.own.iter_mut().find(|own| own.id == id)
    }

    /// Takes stock after all changes of a revision, or of ours.
    pub(crate) fn news(&mut self) -> News {
        let mut news = News::default();
        let Some(copy) = self.copy.as_mut().filter(|copy| copy.read_at.is_some()) else { return news };
        let holders = copy.holders();
        let last = holders.last().map_or(0, |(created, _)| *created);
        let known = |own: &&mut Own| own.created != 0 && own.created <= copy.revision && !own.leaving;
        for own in self.own.iter_mut().filter(known) {
            match copy.entry(own.created) {
                None => {
                    news.gone.push(own.clone());
                    own.stands_at(0);
                }
                Some(entry) if !own.granted && own.created <= last => {
                    own.granted = own.ahead.zip(entry.ahead).is_none_or(|(counted, seen)| counted == seen);
                    news.wrong |= !own.granted;
                    news.granted.extend(own.granted.then(|| (own.id, own.grant())));
                }
                Some(_) => {}
            }
        }
        news.stirred = copy.face.as_ref() != Some(&holders);
        copy.face = Some(holders);
        news
    }

    /// Whether nothing would be lost if it were forgotten.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.own.is_empty() && self.copy.is_none()
    }
}

impl Copy {
    /// The whole line, read at `revision` while the watch stood: (key, create_revision, mod_revision, mode), oldest first.
    pub(crate) fn read(&mut self, revision: i64, live: impl Iterator<Item = (Vec<u8>, i64, i64, Mode)>) {
        (self.read_at, self.revision) = (Some(revision), revision);
        let entry = |(key, created, revision, mode)| Entry { key, created, revision, mode, ahead: None };
        self.entries = live.map(entry).collect();
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
        if let Some((created, mode)) = put
            && let Some(entry) = self.entries.iter_mut().find(|entry| entry.created == created)
        {
            (entry.revision, entry.mode) = (revision, mode);
            return;
        }
        self.entries.retain(|entry| entry.key != key);
        let ahead = i64::try_from(self.entries.len()).ok();
        self.entries.extend(put.map(|(created, mode)| Entry { key, created, revision, mode, ahead }));
    }

    fn entry(&self, created: i64) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&created, |entry| entry.created);
        at.ok().map(|at| &self.entries[at])
    }

    /// Who holds: the create_revision of each, and when its value was last written.
    fn holders(&self) -> Vec<(i64, i64)> {
        let modes: Vec<Mode> = self.entries.iter().map(|entry| entry.mode).collect();
        self.entries[..holding(&modes)].iter().map(|entry| (entry.created, entry.revision)).collect()
    }
}

#[cfg(test)]
mod tests;
