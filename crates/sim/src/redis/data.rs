//! The data of a mini-server: keys with values of four types, each of which may expire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::redis::reply::Reply;

/// All keys. There is one database.
#[derive(Clone, Default)]
pub(crate) struct Data {
    keys: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Clone)]
struct Entry {
    value: Value,
    /// The time of its end, in milliseconds of the server's clock.
    expires: Option<i64>,
}

#[derive(Clone)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Sorted(Sorted),
    List(VecDeque<Vec<u8>>),
}

impl Value {
    fn is_empty(&self) -> bool {
        match self {
            Value::Text(_) => false,
            Value::Hash(hash) => hash.is_empty(),
            Value::Sorted(sorted) => sorted.scores.is_empty(),
            Value::List(list) => list.is_empty(),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::Hash(_) => "hash",
            Value::Sorted(_) => "zset",
            Value::List(_) => "list",
        }
    }
}

/// A sorted set: members by scores.
#[derive(Clone, Default)]
pub(crate) struct Sorted {
    pub(crate) scores: BTreeMap<Vec<u8>, f64>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

/// A score that can be compared: there is no NaN.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Score(pub(crate) f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> std::cmp::Ordering {
        // Minus zero is zero.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

impl Sorted {
    /// Sets the score of a member. Returns whether the member is new.
    pub(crate) fn put(&mut self, member: &[u8], score: f64) -> bool {
        let before = self.scores.insert(member.to_vec(), score);
        if let Some(before) = before {
            self.order.remove(&(Score(before), member.to_vec()));
        }
        self.order.insert((Score(score), member.to_vec()));
        before.is_none()
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let before = self.scores.remove(member);
        before.is_some_and(|score| self.order.remove(&(Score(score), member.to_vec())))
    }

    /// The members in the order of their scores, and then of their names.
    pub(crate) fn in_order(&self) -> impl DoubleEndedIterator<Item = (&Vec<u8>, f64)> {
        self.order.iter().map(|(score, member)| (member, score.0))
    }
}

/// The error of a command on a key of another type.
pub(crate) fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value")
}

/// Reads and changes the values of one type.
macro_rules! typed {
    ($get:ident, $change:ident, $variant:ident, $type:ty) => {
        pub(crate) fn $get(&mut self, key: &[u8], now: i64) -> Result<Option<&$type>, Reply> {
            match self.get(key, now) {
                None => Ok(None),
                Some(Value::$variant(value)) => Ok(Some(value)),
                Some(_) => Err(wrong_type()),
            }
        }

        /// A missing value is made. A value that is empty afterwards is removed.
        pub(crate) fn $change<T>(
            &mut self,
            key: &[u8],
            now: i64,
            change: impl FnOnce(&mut $type) -> T,
        ) -> Result<T, Reply> {
            self.expire(key, now);
            let empty = Value::$variant(Default::default());
            let entry = self.keys.entry(key.to_vec()).or_insert(Entry {
                value: empty,
                expires: None,
            });
            let Value::$variant(value) = &mut entry.value else {
                return Err(wrong_type());
            };
            let outcome = change(value);
            if entry.value.is_empty() {
                self.keys.remove(key);
            }
            Ok(outcome)
        }
    };
}

impl Data {
    /// Removes a key that has expired.
    fn expire(&mut self, key: &[u8], now: i64) {
        if self
            .keys
            .get(key)
            .and_then(|entry| entry.expires)
            .is_some_and(|at| now > at)
        {
            self.keys.remove(key);
        }
    }

    pub(crate) fn get(&mut self, key: &[u8], now: i64) -> Option<&Value> {
        self.expire(key, now);
        self.keys.get(key).map(|entry| &entry.value)
    }

    /// Gives a key another name, in the place of any key of that name. Returns whether there was
    /// such a key.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8], now: i64) -> bool {
        self.expire(from, now);
        let entry = self.keys.remove(from);
        entry
            .map(|entry| self.keys.insert(to.to_vec(), entry))
            .is_some()
    }

    typed!(text, change_text, Text, Vec<u8>);
    typed!(hash, change_hash, Hash, BTreeMap<Vec<u8>, Vec<u8>>);
    typed!(sorted, change_sorted, Sorted, Sorted);
    typed!(list, change_list, List, VecDeque<Vec<u8>>);

    /// Puts a value in the place of whatever is there.
    pub(crate) fn set(&mut self, key: &[u8], value: Value, expires: Option<i64>) {
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    pub(crate) fn remove(&mut self, key: &[u8], now: i64) -> bool {
        self.expire(key, now);
        self.keys.remove(key).is_some()
    }

    /// The time at which this key expires: `None` if there is none, `Some(None)` if it never does.
    pub(crate) fn expires(&mut self, key: &[u8], now: i64) -> Option<Option<i64>> {
        self.expire(key, now);
        self.keys.get(key).map(|entry| entry.expires)
    }

    /// Lets a key expire at this time. Returns whether there was such a key.
    pub(crate) fn expire_at(&mut self, key: &[u8], at: i64, now: i64) -> bool {
        self.expire(key, now);
        let Some(entry) = self.keys.get_mut(key) else {
            return false;
        };
        entry.expires = Some(at);
        // A time in the past deletes the key at once.
        if at <= now {
            self.keys.remove(key);
        }
        true
    }

    /// All keys that exist now, with their types.
    pub(crate) fn all(&mut self, now: i64) -> Vec<(Vec<u8>, &'static str)> {
        self.keys
            .retain(|_, entry| entry.expires.is_none_or(|at| now <= at));
        self.keys
            .iter()
            .map(|(key, entry)| (key.clone(), entry.value.kind()))
            .collect()
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }
}
