//! Names to keys: the lock's key is the name itself, everything else of the name lies beside it in the same slot.

use leasehold_core::support::{escape, unescape};
use leasehold_core::{Error, ErrorKind, Name, Result};

/// Makes keys. Injective, since in a lock's key `%`, `{` and `}` of the name are percent-encoded: two names never share a
/// lock, and no lock's key looks like `{lock}:x`.
#[derive(Debug)]
pub struct Names {
    prefix: String,
    /// What the keys beside the lock begin with, so that two kinds of store never read each other's.
    kind: &'static str,
}

impl Names {
    /// Keys that begin with this text, for this kind of store.
    pub fn new(prefix: &str, kind: &'static str) -> Result<Names> {
        if prefix.contains(['{', '}', '\0']) {
            return Err(Error::new(ErrorKind::Invalid, "the prefix of keys may not contain `{`, `}` or NUL"));
        }
        Ok(Names { prefix: prefix.to_owned(), kind })
    }

    /// The key that is the lock.
    pub fn lock(&self, name: &Name) -> String {
        format!("{}{}", self.prefix, escape(name.as_str(), special))
    }

    /// The channel in which the scripts tell that this name's holder, or its label, has changed.
    pub fn channel(&self, name: &Name) -> String {
        format!("leasehold:name:{}", self.lock(name))
    }

    /// All keys of this name, in the order in which the scripts take them. The first is the lock.
    pub fn keys(&self, name: &Name) -> [String; 5] {
        let lock = self.lock(name);
        let beside = ["h", "f", "q", "w"].map(|key| format!("{{{lock}}}:{}{key}", self.kind));
        let [hold, fence, queue, places] = beside;
        [lock, hold, fence, queue, places]
    }

    /// One more key beside this name's lock.
    pub fn beside(&self, name: &Name, key: &str) -> String {
        format!("{{{}}}:{}{key}", self.lock(name), self.kind)
    }

    /// A pattern for `SCAN` that matches the last tokens and the entries of names that begin with `prefix`, and perhaps more.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        format!("{{{}}}:{}[fw]", self.pattern_of_locks(prefix), self.kind)
    }

    /// The same for the locks themselves.
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

    /// The name whose last token or entries lie in this key.
    pub(crate) fn name(&self, key: &[u8]) -> Option<Name> {
        let key = str::from_utf8(key).ok()?.strip_prefix('{')?;
        let lock = key.strip_suffix(['f', 'w'])?.strip_suffix(self.kind)?.strip_suffix("}:")?;
        self.name_of_lock(lock.as_bytes())
    }

    /// The name whose lock is this key.
    pub(crate) fn name_of_lock(&self, key: &[u8]) -> Option<Name> {
        let name = unescape(str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?, special);
        name.filter(|name| !name.is_empty()).map(Name::from)
    }
}

fn special(c: char) -> bool {
    matches!(c, '{' | '}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("app:", "").unwrap()
    }

    #[test]
    fn ordinary_names_are_their_own_keys() {
        assert_eq!(Names::new("", "").unwrap().lock(&"orders/42 \u{1F512}".into()), "orders/42 \u{1F512}");
        assert_eq!(names().keys(&"a".into()), ["app:a", "{app:a}:h", "{app:a}:f", "{app:a}:q", "{app:a}:w"]);
        assert!(Names::new("a{b", "").is_err());
    }

    #[test]
    fn names_that_try_to_collide_do_not() {
        let tricky =
            ["a", "a/b", "{a}", "{a}:h", "{a}:w", "a%", "%7Ba%7D", "%2F", "/", "a%25", "", " a", "a ", "\"a'", "*"];
        let long = "x".repeat(512);
        let mut keys: Vec<String> = Vec::new();
        for name in tricky.iter().copied().chain([long.as_str()]).filter(|n| !n.is_empty()) {
            keys.extend(names().keys(&name.into()));
            let [_, _, fence, _, entries] = names().keys(&name.into());
            assert_eq!(names().name(fence.as_bytes()), Some(name.into()));
            assert_eq!(names().name(entries.as_bytes()), Some(name.into()));
        }
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    /// What Redis Cluster hashes: between the first `{` and the next `}`, if there is something, or else all.
    fn hashed(key: &str) -> &str {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
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
        for key in
            ["a", "{app:a}:h", "{app:a}:q", "{other:a}:f", "{app:}:f", "{app:a%2Fb}:f", "{app:a%}:f", "{app:{}:f"]
        {
            assert_eq!(names().name(key.as_bytes()), None, "{key}");
        }
        assert_eq!(names().name(b"{app:\xff}:f"), None);
    }

    #[test]
    fn kinds_of_stores_share_nothing_but_the_lock() {
        let other = Names::new("app:", "r").unwrap();
        assert_eq!(other.keys(&"a".into()), ["app:a", "{app:a}:rh", "{app:a}:rf", "{app:a}:rq", "{app:a}:rw"]);
        assert_eq!(other.name(b"{app:a}:rf"), Some("a".into()));
        assert_eq!((other.name(b"{app:a}:f"), names().name(b"{app:a}:rf")), (None, None));
        assert_eq!(other.pattern("a"), "{app:a*}:r[fw]");
    }

    #[test]
    fn a_pattern_is_literal_but_for_its_end() {
        assert_eq!(names().pattern("a*[x]%"), "{app:a\\*\\[x]%25*}:[fw]");
    }
}
