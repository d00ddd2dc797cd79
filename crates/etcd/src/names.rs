//! The keys of a namespace in etcd, and the encoding of a lock's name in a key.
//!
//! ```text
//! <namespace>/<name>/<lease>-<slot>   one place in the queue of a lock; its value has the label and the mode: see `entry`
//! <namespace>/%session/<lease>        a session that is closed: see `client/leased_key`
//! <namespace>/%turn/<name>/<lease>-<slot>  names the place with this key: see `claim/turns`
//! <namespace>/%evicted/<number>/<key> an eviction: the create_revision and key of the place that it ended, under its lease
//! <namespace>/%base                   how far tokens are raised, under no lease: see `fence/raise`
//! <namespace>/%done/<name>            the completion of work that is done once: see `completion/record`
//! ```
//!
//! In a name `/` is written `%2F` and `%` is written `%25`, the rest stays as it is. The prefix
//! `a/` therefore holds the queue of `a` and no key of `a/b` (`a%2Fb/`), and no name begins with
//! such a `%`. `<lease>` is hexadecimal and `<slot>` decimal.

use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::support::{escape, unescape};

/// The start of a turn key, below the namespace.
const TURN: &str = "%turn/";
/// The start of the key of a completion, below the namespace.
const DONE: &str = "%done/";

/// The keys of one namespace.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Empty, or ends in `/`.
    pub(crate) root: String,
}

impl Keys {
    /// The common start of all keys of this lock.
    pub(crate) fn prefix(&self, name: &Name) -> Arc<str> {
        format!("{}/", self.names(name.as_str())).into()
    }

    /// The common start of the keys of all locks whose names begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> String {
        format!("{}{}", self.root, escape(prefix, |c| c == '/'))
    }

    /// The key of the note that the place with this create_revision and key was evicted.
    pub(crate) fn eviction(&self, created: i64, key: &str) -> String {
        format!("{}{created}/{key}", self.evictions())
    }

    /// The common start of the keys of all evictions.
    pub(crate) fn evictions(&self) -> String {
        format!("{}%evicted/", self.root)
    }

    /// The key with the number by which tokens are raised.
    pub(crate) fn base(&self) -> String {
        format!("{}%base", self.root)
    }

    /// The turn key of the place with this key.
    pub(crate) fn turn(&self, place: &str) -> String {
        format!(
            "{}{TURN}{}",
            self.root,
            place.strip_prefix(&self.root).unwrap_or(place)
        )
    }

    /// The lock of this turn key, or of the turn keys that begin with this.
    pub(crate) fn name_of_turn(&self, key: &str) -> Option<Name> {
        name_of(key.strip_prefix(&self.root)?.strip_prefix(TURN)?)
    }

    /// The key of the completion of this name.
    pub(crate) fn completion(&self, name: &Name) -> Arc<str> {
        self.completions(name.as_str()).into()
    }

    /// The common start of the keys of the completions of all names that begin with `prefix`.
    pub(crate) fn completions(&self, prefix: &str) -> String {
        format!("{}{DONE}{}", self.root, escape(prefix, |c| c == '/'))
    }

    /// The name of which this key has the completion.
    pub(crate) fn name_of_completion(&self, key: &str) -> Option<Name> {
        unescaped(key.strip_prefix(&self.root)?.strip_prefix(DONE)?)
    }

    /// The lock to which `key` belongs; `None` for a key that can belong neither to this library
    /// nor to another tool's lock with one of these names.
    pub(crate) fn name_of(&self, key: &str) -> Option<Name> {
        name_of(key.strip_prefix(&self.root)?)
    }
}

fn name_of(key: &str) -> Option<Name> {
    unescaped(key.split_once('/')?.0)
}

fn unescaped(name: &str) -> Option<Name> {
    unescape(name, |c| c == '/')
        .filter(|name| !name.is_empty())
        .map(Name::from)
}

/// Returns whether the keys in this folder are those of completions.
pub(crate) fn has_completions(folder: &str) -> bool {
    folder.ends_with(DONE)
}

/// The key of a place.
pub(crate) fn place(prefix: &str, lease: i64, slot: usize) -> String {
    format!("{prefix}{lease:x}-{slot}")
}

/// The session's lease in the key of a place of this library under `prefix`; other tools write the
/// lease alone.
pub(crate) fn lease_of(prefix: &str, key: &[u8]) -> Option<i64> {
    let (lease, slot) = str::from_utf8(key.strip_prefix(prefix.as_bytes())?)
        .ok()?
        .split_once('-')?;
    slot.parse::<u32>().ok()?;
    i64::from_str_radix(lease, 16).ok()
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn names_come_back_and_never_interact() {
        let names = [
            "a",
            "a/b",
            "a%2Fb",
            "a%252Fb",
            "%",
            "%25",
            "%session",
            "{a}",
            "\"",
            " ",
            "é漢\u{1F512}",
            "a/",
            "/",
        ];
        let keys = Keys {
            root: "prod/".into(),
        };
        let prefixes: Vec<_> = names.iter().map(|n| keys.prefix(&Name::from(*n))).collect();
        for (i, prefix) in prefixes.iter().enumerate() {
            let key = place(prefix, 0x1234, 7);
            assert_eq!(keys.name_of(&key), Some(Name::from(names[i])));
            assert_eq!(lease_of(prefix, key.as_bytes()), Some(0x1234));
            assert!(
                prefixes
                    .iter()
                    .filter(|other| key.starts_with(&***other))
                    .count()
                    == 1,
                "{key}"
            );
            assert!(
                !keys.evictions().starts_with(&**prefix)
                    && !"prod/%session/1234".starts_with(&**prefix)
                    && !keys.completions("").starts_with(&**prefix)
            );
            let done = keys.completion(&Name::from(names[i]));
            assert_eq!(keys.name_of_completion(&done), Some(Name::from(names[i])));
            assert!(
                has_completions(&done[..=done.rfind('/').unwrap()]) && !has_completions(prefix)
            );
        }
        assert_eq!(&*prefixes[0], "prod/a/");
        assert_eq!(
            &*Keys { root: "".into() }.prefix(&"orders/42".into()),
            "orders%2F42/"
        );
    }

    #[test]
    fn what_is_not_ours_is_told_apart() {
        assert_eq!(lease_of("a/", b"a/694d7-0"), Some(0x694d7));
        assert_eq!(lease_of("a/", b"a/694d7-12"), Some(0x694d7));
        for foreign in [
            "a/694d7",
            "a/694d7-12r",
            "a/x-0",
            "a/694d7-",
            "a/694d7-r",
            "b/694d7-0",
            "a/",
        ] {
            assert_eq!(lease_of("a/", foreign.as_bytes()), None, "{foreign}");
        }
        let keys = Keys { root: "".into() };
        for key in [
            "%session/1",
            "%evicted/1",
            "%base",
            "%done/a",
            "/registry/pods",
            "plain",
        ] {
            assert_eq!(keys.name_of(key), None, "{key}");
        }
    }

    #[test]
    fn whatever_a_key_is_it_is_one_of_a_name_or_of_none() {
        fuzz_text(include_str!("../corpus/keys"), |key| {
            for root in ["", "prod/"] {
                let keys = Keys { root: root.into() };
                if let Some(name) = keys.name_of(key) {
                    assert!(key.starts_with(&*keys.prefix(&name)));
                }
                let prefix = keys.prefix(&Name::from(key));
                assert_eq!(
                    keys.name_of(&place(&prefix, 7, 1)),
                    (!key.is_empty()).then(|| Name::from(key))
                );
            }
            if let Some(lease) = lease_of("a/", key.as_bytes()) {
                assert_eq!(
                    lease_of("a/", place("a/", lease, 0).as_bytes()),
                    Some(lease)
                );
            }
        });
    }

    /// The keys beside the locks belong to no lock's queue; a turn key tells the lock to which it
    /// belongs.
    #[test]
    fn what_lies_beside_the_locks_is_of_no_name() {
        for root in ["", "prod/"] {
            let keys = Keys { root: root.into() };
            let place = place(&keys.prefix(&"a/b".into()), 0x1234, 7);
            let beside = [
                keys.base(),
                keys.evictions(),
                keys.eviction(9, &place),
                keys.turn(&place),
                keys.completion(&"a/b".into()).to_string(),
            ];
            for (i, key) in beside.iter().enumerate() {
                assert!(key.starts_with(root) && key.len() > root.len() + 1, "{key}");
                assert_eq!(
                    keys.name_of_turn(key),
                    (i == 3).then(|| "a/b".into()),
                    "{key}"
                );
                assert!(
                    beside.iter().filter(|other| *other == key).count() == 1,
                    "{beside:?}"
                );
            }
            assert!(beside[2].starts_with(&beside[1]) && beside[2].ends_with(&place));
            assert_ne!(keys.eviction(9, &place), keys.eviction(10, &place));
            assert_ne!(
                keys.turn(&place),
                keys.turn(&super::place(&keys.prefix(&"a".into()), 0x1234, 7))
            );
        }
    }
}
