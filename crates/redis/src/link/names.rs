//! Turns names into keys: the lock's key is the name itself, and all other keys of the name lie
//! beside it in its slot.

use leasehold_core::support::{escape, unescape};
use leasehold_core::{Error, ErrorKind, Name, Result};

/// Makes keys. The mapping is injective: in a lock's key `%`, `{` and `}` of the name are
/// percent-encoded, so two names never share a lock, and no lock's key looks like `{lock}:x`.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
    /// The endings of the keys beside the lock. Each kind of store has its own, so that two kinds
    /// never read each other's keys. The first key exists while there are waiters.
    beside: &'static [&'static str],
}

impl Names {
    /// Keys that begin with this text. Keys beside a lock have these endings; the first of them
    /// exists while there are waiters.
    pub(crate) fn new(prefix: &str, beside: &'static [&'static str]) -> Result<Names> {
        if prefix.contains(['{', '}', '\0']) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the prefix of keys may not contain `{`, `}` or NUL",
            ));
        }
        Ok(Names {
            prefix: prefix.to_owned(),
            beside,
        })
    }

    /// The key that is the lock.
    pub(crate) fn lock(&self, name: &Name) -> String {
        [&*self.prefix, &*escape(name.as_str(), special)].concat()
    }

    /// A key that never exists. A user with rights on all names may use it.
    pub(crate) fn absent(&self) -> String {
        format!("{{{}}}:-", self.prefix)
    }

    /// A key that exists only while a client without scripts makes sure that transactions work.
    pub(crate) fn watched(&self) -> String {
        format!("{{{}}}:w", self.prefix)
    }

    /// The key of the database's mark.
    pub(crate) fn mark(&self) -> String {
        format!("{{{}}}:store", self.prefix)
    }

    /// The channel in which the scripts publish that this name's holder, or its label, has changed.
    pub(crate) fn channel(&self, name: &Name) -> String {
        format!("leasehold:name:{}", self.lock(name))
    }

    /// All keys of this name, in the order in which the scripts take them. The first is the lock.
    pub(crate) fn keys(&self, name: &Name) -> Vec<String> {
        let beside = self.beside.iter().map(|ending| self.beside(name, ending));
        [self.lock(name)].into_iter().chain(beside).collect()
    }

    /// The key with this ending beside the lock of this name.
    pub(crate) fn beside(&self, name: &Name, ending: &str) -> String {
        ["{", &self.lock(name), "}:", ending].concat()
    }

    /// The ending of the keys that exist while there are waiters.
    pub(crate) fn of_queues(&self) -> &'static str {
        self.beside[0]
    }

    /// A pattern for `SCAN` that matches the keys with this ending beside the locks of names that
    /// begin with `prefix`, and perhaps more.
    pub(crate) fn pattern_of(&self, ending: &str, prefix: &str) -> String {
        format!("{{{}}}:{ending}", self.pattern_of_locks(prefix))
    }

    /// A pattern for `SCAN` that matches the locks of names that begin with `prefix`, and perhaps
    /// more.
    pub(crate) fn pattern_of_locks(&self, prefix: &str) -> String {
        let mut pattern = String::new();
        for c in self.prefix.chars().chain(escape(prefix, special).chars()) {
            if matches!(c, '*' | '?' | '[' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern + "*"
    }

    /// The name beside whose lock this key with this ending is.
    pub(crate) fn name_of(&self, ending: &str, key: &[u8]) -> Option<Name> {
        let key = str::from_utf8(key).ok()?.strip_prefix('{')?;
        let lock = key.strip_suffix(ending)?.strip_suffix("}:")?;
        self.name_of_lock(lock.as_bytes())
    }

    /// The name whose lock is this key.
    pub(crate) fn name_of_lock(&self, key: &[u8]) -> Option<Name> {
        let name = unescape(
            str::from_utf8(key)
                .ok()?
                .strip_prefix(self.prefix.as_str())?,
            special,
        );
        name.filter(|name| !name.is_empty()).map(Name::from)
    }
}

fn special(c: char) -> bool {
    matches!(c, '{' | '}')
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    fn names() -> Names {
        Names::new("app:", &["l", "o"]).unwrap()
    }

    #[test]
    fn ordinary_names_are_their_own_keys() {
        assert_eq!(
            Names::new("", &["l"])
                .unwrap()
                .lock(&"orders/42 \u{1F512}".into()),
            "orders/42 \u{1F512}"
        );
        assert_eq!(
            names().keys(&"a".into()),
            ["app:a", "{app:a}:l", "{app:a}:o"]
        );
        assert_eq!(names().channel(&"a".into()), "leasehold:name:app:a");
        assert!(Names::new("a{b", &["l"]).is_err());
    }

    #[test]
    fn names_that_try_to_collide_do_not() {
        let tricky = [
            "a", "a/b", "{a}", "{a}:l", "{a}:o", "a%", "%7Ba%7D", "%2F", "/", "a%25", "", " a",
            "a ", "\"a'", "*",
        ];
        let long = "x".repeat(512);
        let mut keys: Vec<String> = vec!["{}:f".into(), "{app:}:l".into()];
        for name in tricky
            .iter()
            .copied()
            .chain([long.as_str()])
            .filter(|n| !n.is_empty())
        {
            let its = names().keys(&name.into());
            assert_eq!(names().name_of("l", its[1].as_bytes()), Some(name.into()));
            keys.extend(its);
        }
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    /// The part of a key that Redis Cluster hashes: the text between the first `{` and the next `}`
    /// if it is not empty, or else the whole key.
    fn hashed(key: &str) -> &str {
        let tag = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map(|(tag, _)| tag);
        tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
    }

    #[test]
    fn all_keys_of_a_name_are_in_one_slot() {
        for name in ["a", "{a}", "a}b", "{}", "}{", "\u{1F512} x"] {
            let keys = names().keys(&name.into());
            assert!(keys.iter().all(|key| hashed(key) == keys[0]), "{keys:?}");
        }
    }

    #[test]
    fn other_keys_have_no_name() {
        for key in [
            "a",
            "{app:a}:o",
            "{app:a}:rl",
            "{other:a}:l",
            "{app:}:l",
            "{app:a%2Fb}:l",
            "{app:a%}:l",
            "{app:{}:l",
        ] {
            assert_eq!(names().name_of("l", key.as_bytes()), None, "{key}");
        }
        assert_eq!(names().name_of("l", b"{app:\xff}:l"), None);
    }

    #[test]
    fn kinds_of_stores_share_nothing_but_the_lock() {
        let other = Names::new("app:", &["rl", "ro"]).unwrap();
        assert_eq!(
            other.keys(&"a".into()),
            ["app:a", "{app:a}:rl", "{app:a}:ro"]
        );
        assert_eq!(other.name_of("rl", b"{app:a}:rl"), Some("a".into()));
        assert_eq!(
            (
                other.name_of("rl", b"{app:a}:l"),
                names().name_of("l", b"{app:a}:rl")
            ),
            (None, None)
        );
        assert_eq!(other.pattern_of(other.of_queues(), "a"), "{app:a*}:rl");
    }

    #[test]
    fn a_pattern_is_literal_but_for_its_end() {
        assert_eq!(names().pattern_of("l", "a*[x]%"), "{app:a\\*\\[x]%25*}:l");
    }

    #[test]
    fn whatever_a_key_is_it_is_one_of_a_name_or_of_none() {
        fuzz(include_str!("../../corpus/keys"), |key| {
            let names = names();
            if let Some(name) = names.name_of_lock(key) {
                assert_eq!(names.lock(&name).as_bytes(), key);
            }
            if let Some(name) = names.name_of("l", key) {
                assert_eq!(names.keys(&name)[1].as_bytes(), key);
            }
            let name = Name::new(String::from_utf8_lossy(key));
            let keys = names.keys(&name);
            let found = (
                names.name_of_lock(keys[0].as_bytes()),
                names.name_of("l", keys[1].as_bytes()),
            );
            let name = (!key.is_empty()).then_some(name);
            assert_eq!(found, (name.clone(), name));
            assert!(keys.iter().all(|key| hashed(key) == keys[0]), "{keys:?}");
        });
    }
}
