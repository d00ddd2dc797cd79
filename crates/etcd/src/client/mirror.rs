//! The mirror of a prefix, or of one key: a copy of its keys in the order of their
//! create_revisions. It is read once, after its watch has started, and kept true by the events of
//! the watch. Pure: no clock, no network. `mirrors` keeps them.
//!
//! Why it is right:
//! * The watch starts before the prefix is read. Events that come before the answer are kept for
//!   later, and events up to the revision of the read are ignored: keys are reused, and the
//!   deletion of a key must not remove the next one of the same name.
//! * It states the revision up to which it is complete. It says nothing about a later key.
//! * Each key that came after the read has the number of keys that were there before it. The
//!   transaction that created the key may have counted them too, so a key that the watch has missed
//!   is detected.

use std::mem::take;
use std::time::Duration;

use leasehold_core::backend::Moment;

/// An event is reported at most this much later than an answer that has seen its effect.
const LATEST: Duration = Duration::from_secs(1);

/// The known keys of a prefix. It is empty at first, and again after any doubt.
#[derive(Debug)]
pub(crate) struct Mirror<V> {
    /// The revision at which it was read; before that, events are kept in `early`.
    read_at: Option<i64>,
    early: Vec<Event<V>>,
    /// The revision up to which it is complete.
    pub(crate) revision: i64,
    /// By create_revision.
    pub(crate) keys: Vec<Key<V>>,
    /// See [`Mirror::misses_events`].
    outdated: Option<(i64, Moment)>,
    /// See [`Mirror::take_removed`].
    removed: Option<Vec<i64>>,
    /// See [`Mirror::head_changed`].
    head: Option<Vec<(i64, i64)>>,
}

/// A key.
#[derive(Debug)]
pub(crate) struct Key<V> {
    /// Its name.
    pub(crate) name: Vec<u8>,
    /// Its create_revision.
    pub(crate) created: i64,
    /// The revision at which its value was last written.
    pub(crate) revision: i64,
    /// The number of keys that were there before it when it came; `None` if it was read.
    pub(crate) ahead: Option<i64>,
    /// The part of its value that is kept.
    pub(crate) value: V,
}

/// An event of the watch: a change of one key.
#[derive(Clone, Debug)]
pub(crate) struct Event<V> {
    /// The revision at which it happened.
    pub(crate) revision: i64,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Its create_revision and the kept part of its value; `None` if it was deleted.
    pub(crate) put: Option<(i64, V)>,
}

impl<V> Default for Mirror<V> {
    fn default() -> Mirror<V> {
        let early = Vec::new();
        let keys = Vec::new();
        Mirror {
            read_at: None,
            early,
            revision: 0,
            keys,
            outdated: None,
            removed: None,
            head: None,
        }
    }
}

impl<V> Mirror<V> {
    /// Creates the mirror of a prefix of which only new keys matter: it needs no read.
    pub(crate) fn of_new_keys() -> Mirror<V> {
        Mirror {
            read_at: Some(0),
            ..Mirror::default()
        }
    }

    /// Returns whether it was read, and so is complete up to its revision.
    pub(crate) fn is_read(&self) -> bool {
        self.read_at.is_some()
    }

    /// Returns whether it shows what became of a key with this create_revision.
    pub(crate) fn knows(&self, created: i64) -> bool {
        self.is_read() && created <= self.revision
    }

    /// The key with this create_revision.
    pub(crate) fn key(&self, created: i64) -> Option<&Key<V>> {
        let at = self.keys.binary_search_by_key(&created, |key| key.created);
        at.ok().map(|at| &self.keys[at])
    }

    /// Returns whether its first key has been gone from the store for [`LATEST`], as this call and
    /// earlier ones have seen. `oldest` is the create_revision of the first key that is there now.
    pub(crate) fn misses_events(&mut self, oldest: i64, now: Moment) -> bool {
        let first = self
            .keys
            .first()
            .map(|key| key.created)
            .filter(|first| *first < oldest);
        let since = self
            .outdated
            .filter(|(outdated, _)| Some(*outdated) == first)
            .map_or(now, |(_, since)| since);
        self.outdated = first.map(|first| (first, since));
        now.since(since) >= LATEST
    }

    /// The create_revisions of the keys that were removed since the last call; `None`: any may have
    /// been removed.
    pub(crate) fn take_removed(&mut self) -> Option<Vec<i64>> {
        self.removed.replace(Vec::new())
    }

    /// Returns whether the first `n` keys or their values have changed since the last call.
    pub(crate) fn head_changed(&mut self, n: usize) -> bool {
        let head = self.keys[..n]
            .iter()
            .map(|key| (key.created, key.revision))
            .collect();
        let before = self.head.replace(head);
        before != self.head
    }

    /// Takes in the answer of the read, which was made at `revision` after the watch had started:
    /// (key, create_revision, mod_revision, value), oldest first.
    pub(crate) fn read(
        &mut self,
        revision: i64,
        live: impl Iterator<Item = (Vec<u8>, i64, i64, V)>,
    ) {
        (self.read_at, self.revision, self.removed) = (Some(revision), revision, None);
        let key = |(name, created, revision, value)| Key {
            name,
            created,
            revision,
            ahead: None,
            value,
        };
        self.keys = live.map(key).collect();
        take(&mut self.early)
            .into_iter()
            .for_each(|event| self.take_in(event));
    }

    /// Takes in an event of the watch.
    pub(crate) fn take_in(&mut self, event: Event<V>) {
        match self.read_at {
            None => self.early.push(event),
            Some(read_at) if event.revision > read_at => self.apply(event),
            Some(_) => {}
        }
    }

    fn apply(&mut self, Event { revision, key, put }: Event<V>) {
        self.revision = revision;
        let at = |(created, _): &(i64, V)| {
            self.keys
                .binary_search_by_key(created, |known| known.created)
                .ok()
        };
        let known = put.as_ref().and_then(at);
        match (put, known) {
            (Some((_, value)), Some(at)) => {
                (self.keys[at].revision, self.keys[at].value) = (revision, value);
            }
            (put, _) => {
                let over = self
                    .keys
                    .iter()
                    .position(|known| known.name == key)
                    .map(|at| self.keys.remove(at).created);
                self.removed
                    .iter_mut()
                    .for_each(|removed| removed.extend(over));
                let ahead = i64::try_from(self.keys.len()).ok();
                self.keys.extend(put.map(|(created, value)| Key {
                    name: key,
                    created,
                    revision,
                    ahead,
                    value,
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: i64, created: i64, key: u8) -> Event<i64> {
        Event {
            revision,
            key: vec![key],
            put: Some((created, revision)),
        }
    }

    fn deleted(revision: i64, key: u8) -> Event<i64> {
        Event {
            revision,
            key: vec![key],
            put: None,
        }
    }

    fn known(mirror: &Mirror<i64>) -> Vec<(i64, i64, Option<i64>)> {
        mirror
            .keys
            .iter()
            .map(|key| (key.created, key.value, key.ahead))
            .collect()
    }

    #[test]
    fn events_before_the_read_count_if_they_happened_after_it() {
        let mut mirror = Mirror::default();
        mirror.take_in(deleted(6, 1)); // another one of the same key
        mirror.take_in(put(11, 11, 3));
        assert!(!mirror.is_read() && mirror.keys.is_empty());
        mirror.read(10, [(vec![1], 7, 7, 7), (vec![2], 9, 9, 9)].into_iter());
        assert_eq!(
            known(&mirror),
            [(7, 7, None), (9, 9, None), (11, 11, Some(2))]
        );
        mirror.take_in(deleted(8, 1));
        mirror.take_in(put(12, 9, 2));
        mirror.take_in(deleted(13, 1));
        assert_eq!(known(&mirror), [(9, 12, None), (11, 11, Some(2))]);
        assert_eq!((mirror.revision, mirror.key(11).unwrap().name[0]), (13, 3));
        mirror.take_in(deleted(14, 2));
        mirror.take_in(put(14, 14, 2)); // in one transaction
        assert_eq!(known(&mirror), [(11, 11, Some(2)), (14, 14, Some(1))]);
        assert!(mirror.key(9).is_none());
    }

    #[test]
    fn a_head_changes_with_its_keys_their_values_and_its_length() {
        let mut mirror = Mirror::of_new_keys();
        assert!(mirror.is_read() && mirror.head_changed(0) && !mirror.head_changed(0));
        mirror.take_in(put(3, 3, 1));
        assert!(mirror.head_changed(1));
        mirror.take_in(put(4, 4, 2));
        assert!(!mirror.head_changed(1) && mirror.head_changed(2));
        mirror.take_in(put(5, 4, 2));
        assert!(mirror.head_changed(2));
        mirror.take_in(deleted(6, 1));
        assert!(mirror.head_changed(1) && !mirror.head_changed(1));
    }

    /// A mirror may be a little behind a read. If its first key is gone for [`LATEST`], events are
    /// missing.
    #[test]
    fn events_are_missing_if_the_first_key_stays_gone() {
        let start = Moment::from_nanos(5_000_000_000);
        let ms = Duration::from_millis;
        let mut mirror = Mirror::of_new_keys();
        assert!(!mirror.misses_events(9, start), "it has no key");
        mirror.take_in(put(3, 3, 1));
        mirror.take_in(put(4, 4, 2));
        assert!(
            !mirror.misses_events(3, start) && !mirror.misses_events(3, start + LATEST),
            "its first key is there"
        );
        assert!(
            !mirror.misses_events(4, start) && !mirror.misses_events(4, start + (LATEST - ms(1)))
        );
        assert!(mirror.misses_events(4, start + LATEST));
        mirror.take_in(deleted(6, 1));
        assert!(
            !mirror.misses_events(9, start + LATEST),
            "another one is first now"
        );
        assert!(mirror.misses_events(9, start + LATEST * 2));
    }

    #[test]
    fn who_was_removed_is_told_once() {
        let mut mirror = Mirror::of_new_keys();
        mirror.take_removed();
        mirror.take_in(put(3, 3, 1));
        mirror.take_in(put(4, 4, 2));
        assert_eq!(mirror.take_removed(), Some(vec![]));
        mirror.take_in(deleted(6, 1));
        mirror.take_in(deleted(7, 2));
        assert_eq!(
            (mirror.take_removed(), mirror.take_removed()),
            (Some(vec![3, 4]), Some(vec![]))
        );
        mirror.read(10, [(vec![1], 7, 7, 7)].into_iter());
        assert_eq!(
            mirror.take_removed(),
            None,
            "any may have been removed before it was read anew"
        );
    }
}
