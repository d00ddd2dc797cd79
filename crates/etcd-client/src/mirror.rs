//! The mirror of a prefix: a copy of its keys by create_revision, read once when its watch stands and kept true by what
//! the watch says. Pure: no clock, no network. `mirrors` keeps them.
//!
//! What makes it right:
//! * the watch stands before the prefix is read. What it says meanwhile is kept, and what the read has seen is not believed
//!   again: keys are reused, and the deletion of a key must not strike the next one of the same name;
//! * it says up to which revision it knows all: of a later key it cannot know yet;
//! * each key that it saw come is numbered by how many were there before it. Whoever made the key may have counted them too,
//!   and so finds out if the watch has failed to tell of one.

use std::mem::take;

/// What is known of a prefix. It begins with nothing, and anew after any doubt.
#[derive(Debug)]
pub struct Mirror<V> {
    /// When it was read; before that, what the watch said is kept in `early`.
    read_at: Option<i64>,
    early: Vec<Event<V>>,
    revision: i64,
    entries: Vec<Entry<V>>,
    /// See [`Mirror::head_changed`].
    head: Option<Vec<(i64, i64)>>,
}

/// A key.
#[derive(Debug)]
pub struct Entry<V> {
    /// The key.
    pub key: Vec<u8>,
    /// Its create_revision.
    pub created: i64,
    /// When its value was last written.
    pub revision: i64,
    /// How many were there before it when it came; `None` if it was read.
    pub ahead: Option<i64>,
    /// What is kept of its value.
    pub value: V,
}

/// What the watch says of one key.
#[derive(Clone, Debug)]
pub struct Event<V> {
    /// When it happened.
    pub revision: i64,
    /// The key.
    pub key: Vec<u8>,
    /// Its create_revision, and what is kept of its value; `None` if it was deleted.
    pub put: Option<(i64, V)>,
}

impl<V> Default for Mirror<V> {
    fn default() -> Mirror<V> {
        Mirror { read_at: None, early: Vec::new(), revision: 0, entries: Vec::new(), head: None }
    }
}

impl<V> Mirror<V> {
    /// That of a prefix of which only what comes matters: it needs no read.
    pub(crate) fn of_what_comes() -> Mirror<V> {
        Mirror { read_at: Some(0), ..Mirror::default() }
    }

    /// Whether it was read, and so knows all up to its revision.
    pub fn is_read(&self) -> bool {
        self.read_at.is_some()
    }

    /// Up to where it knows all.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// By create_revision.
    pub fn entries(&self) -> &[Entry<V>] {
        &self.entries
    }

    /// The entry with this create_revision.
    pub fn entry(&self, created: i64) -> Option<&Entry<V>> {
        let at = self.entries.binary_search_by_key(&created, |entry| entry.created);
        at.ok().map(|at| &self.entries[at])
    }

    /// Whether its first entries, so many, or their values are others than those that were asked for the last time.
    pub fn head_changed(&mut self, n: usize) -> bool {
        let head = self.entries[..n].iter().map(|entry| (entry.created, entry.revision)).collect();
        let before = self.head.replace(head);
        before != self.head
    }

    /// All keys, read at `revision` while the watch stood: (key, create_revision, mod_revision, value), oldest first.
    pub fn read(&mut self, revision: i64, live: impl Iterator<Item = (Vec<u8>, i64, i64, V)>) {
        (self.read_at, self.revision) = (Some(revision), revision);
        let entry = |(key, created, revision, value)| Entry { key, created, revision, ahead: None, value };
        self.entries = live.map(entry).collect();
        take(&mut self.early).into_iter().for_each(|event| self.hear(event));
    }

    /// The watch says this.
    pub fn hear(&mut self, event: Event<V>) {
        match self.read_at {
            None => self.early.push(event),
            Some(read_at) if event.revision > read_at => self.apply(event),
            Some(_) => {}
        }
    }

    fn apply(&mut self, Event { revision, key, put }: Event<V>) {
        self.revision = revision;
        let known =
            put.as_ref().and_then(|(created, _)| self.entries.iter().position(|entry| entry.created == *created));
        match (put, known) {
            (Some((_, value)), Some(at)) => (self.entries[at].revision, self.entries[at].value) = (revision, value),
            (put, _) => {
                self.entries.retain(|entry| entry.key != key);
                let ahead = i64::try_from(self.entries.len()).ok();
                self.entries.extend(put.map(|(created, value)| Entry { key, created, revision, ahead, value }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: i64, created: i64, key: u8) -> Event<i64> {
        Event { revision, key: vec![key], put: Some((created, revision)) }
    }

    fn deleted(revision: i64, key: u8) -> Event<i64> {
        Event { revision, key: vec![key], put: None }
    }

    fn known(mirror: &Mirror<i64>) -> Vec<(i64, i64, Option<i64>)> {
        mirror.entries().iter().map(|entry| (entry.created, entry.value, entry.ahead)).collect()
    }

    #[test]
    fn what_was_said_before_the_read_counts_if_it_happened_after_it() {
        let mut mirror = Mirror::default();
        mirror.hear(deleted(6, 1)); // another one of the same key
        mirror.hear(put(11, 11, 3));
        assert!(!mirror.is_read() && mirror.entries().is_empty());
        mirror.read(10, [(vec![1], 7, 7, 7), (vec![2], 9, 9, 9)].into_iter());
        assert_eq!(known(&mirror), [(7, 7, None), (9, 9, None), (11, 11, Some(2))]);
        mirror.hear(deleted(8, 1));
        mirror.hear(put(12, 9, 2));
        mirror.hear(deleted(13, 1));
        assert_eq!(known(&mirror), [(9, 12, None), (11, 11, Some(2))]);
        assert_eq!((mirror.revision(), mirror.entry(11).unwrap().key[0]), (13, 3));
        mirror.hear(deleted(14, 2));
        mirror.hear(put(14, 14, 2)); // in one transaction
        assert_eq!(known(&mirror), [(11, 11, Some(2)), (14, 14, Some(1))]);
        assert!(mirror.entry(9).is_none());
    }

    #[test]
    fn a_head_changes_with_its_entries_their_values_and_its_length() {
        let mut mirror = Mirror::of_what_comes();
        assert!(mirror.is_read() && mirror.head_changed(0) && !mirror.head_changed(0));
        mirror.hear(put(3, 3, 1));
        assert!(mirror.head_changed(1));
        mirror.hear(put(4, 4, 2));
        assert!(!mirror.head_changed(1) && mirror.head_changed(2));
        mirror.hear(put(5, 4, 2));
        assert!(mirror.head_changed(2));
        mirror.hear(deleted(6, 1));
        assert!(mirror.head_changed(1) && !mirror.head_changed(1));
    }
}
