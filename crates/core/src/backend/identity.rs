//! The identity of a store, and what a client knows of it.
//!
//! Two programs exclude each other only in one store. An address that moves, a member that comes
//! back empty or a second cluster in one URL lead a client to another one, where the same lock is
//! free. Servers say who they are, as a rule in each answer. A client keeps the first identity that
//! it sees, and compares every later one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use smol_str::SmolStr;

use crate::backend::clock::Moment;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::support::fault;
use crate::support::sync::{Mutex, locked};

/// The identity of a store: a short text that no other store has.
///
/// It is made of what the servers say of themselves, such as the id of an etcd cluster; a store
/// documents of what, and which changes it survives. Compare it, or pin it in a URL by the
/// parameter `store`; it has no other meaning.
///
/// # Examples
///
/// ```
/// use leasehold_core::StoreId;
///
/// let id: StoreId = "etcd-e93598dd90c1dc05".parse().unwrap();
/// assert_eq!(id.to_string(), "etcd-e93598dd90c1dc05");
/// assert!("two words".parse::<StoreId>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreId(SmolStr);

/// The longest identity in bytes.
const LONGEST: usize = 256;
/// An identity is news again once it was not seen for so long.
const FORGOTTEN: Duration = Duration::from_secs(60);

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._:".contains(c)
}

impl StoreId {
    /// The identity of a store of this kind, by what its servers say. A character that no identity
    /// has is written as `_`.
    pub fn of(kind: &str, id: impl fmt::Display) -> StoreId {
        let text = format!("{kind}-{id}");
        let plain = text.chars().map(|c| if is_plain(c) { c } else { '_' });
        StoreId(plain.take(LONGEST).collect())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreId {
    type Err = Error;

    /// Reads the text of an identity.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a text that cannot be one: up to 256 letters and digits
    /// of ASCII, `-`, `.`, `_` and `:`.
    fn from_str(text: &str) -> Result<StoreId> {
        if text.is_empty() || text.len() > LONGEST || !text.chars().all(is_plain) {
            let what = "the identity of a store is a text such as etcd-e93598dd90c1dc05: `leasehold guarantees` shows it";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(StoreId(text.into()))
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a client knows of the identity of its store, for authors of stores.
///
/// # Examples
///
/// ```
/// use leasehold_core::{ErrorKind, StoreId};
/// use leasehold_core::backend::Identity;
///
/// let identity = Identity::default();
/// let [first, second] = ["1", "2"].map(|id| StoreId::of("etcd", id));
/// assert!(identity.check(&first).is_ok() && identity.check(&first).is_ok());
/// assert_eq!(identity.check(&second).unwrap_err().kind(), ErrorKind::OtherStore);
/// assert_eq!(identity.id(), Some(first));
/// ```
#[derive(Debug, Default)]
pub struct Identity {
    known: Mutex<Known>,
    is_pinned: bool,
}

#[derive(Debug, Default)]
struct Known {
    id: Option<StoreId>,
    /// The other store that a server belonged to, since the last answer of the right one.
    other: Option<StoreId>,
    /// The identities that events have told of, and when each was last seen. Servers of two stores
    /// may answer by turns.
    told: Vec<(StoreId, Moment)>,
}

impl Known {
    /// Returns whether an event has to tell of this identity.
    fn is_news(&mut self, id: &StoreId) -> bool {
        let now = Moment::now();
        self.told.retain(|(_, seen)| now.since(*seen) < FORGOTTEN);
        match self.told.iter_mut().find(|(told, _)| told == id) {
            Some((_, seen)) => {
                *seen = now;
                false
            }
            None => {
                self.told.push((id.clone(), now));
                true
            }
        }
    }
}

impl Identity {
    /// Only the store with this identity is right, if one is given, and otherwise the first that
    /// answers.
    pub fn pinned(id: Option<StoreId>) -> Identity {
        Identity {
            is_pinned: id.is_some(),
            known: Mutex::new(Known {
                id,
                ..Known::default()
            }),
        }
    }

    /// Returns whether the identity was given, so that it never changes.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// The identity, once it is known.
    pub fn id(&self) -> Option<StoreId> {
        locked(&self.known).id.clone()
    }

    /// Goes on with another identity, which a store gets if it loses all its data. The client
    /// cannot know whether it is another store, and an event says so.
    pub fn renew(&self, id: &StoreId) {
        let mut known = locked(&self.known);
        let before = known.id.replace(id.clone());
        known.other = None;
        let before = before.filter(|before| before != id && known.is_news(id));
        drop(known);
        if let Some(before) = before {
            tracing::warn!(
                store = %before,
                answered = %id,
                "the store {before} is {id} now: it has lost its data, or the address leads to another one, whose locks are others"
            );
        }
    }

    /// Begins with an identity that a former client of this program has learnt.
    pub fn learn(&self, id: StoreId) {
        locked(&self.known).id.get_or_insert(id);
    }

    /// Compares the identity that a server has answered. The first one is kept.
    ///
    /// # Errors
    ///
    /// [`OtherStore`](ErrorKind::OtherStore) if it is another one than the known one. The server
    /// must not be used.
    pub fn check(&self, answered: &StoreId) -> Result<()> {
        let mut known = locked(&self.known);
        let id = known.id.get_or_insert_with(|| answered.clone()).clone();
        if id == *answered || fault("any-store") {
            known.other = None;
            return Ok(());
        }
        known.other = Some(answered.clone());
        let is_news = known.is_news(answered);
        drop(known);
        let error = self.other_than(&id, answered);
        if is_news {
            tracing::warn!(store = %id, answered = %answered, "{error}");
        }
        Err(error)
    }

    /// The error of the latest server that was checked, if it belonged to another store: for a
    /// client that reaches no server of its own store.
    pub fn complaint(&self) -> Option<Error> {
        let known = locked(&self.known);
        Some(self.other_than(known.id.as_ref()?, known.other.as_ref()?))
    }

    fn other_than(&self, known: &StoreId, answered: &StoreId) -> Error {
        let why = match self.is_pinned {
            true => format!("the URL names the store {known}"),
            false => format!("this client belongs to the store {known}"),
        };
        let what = format!(
            "the server or file belongs to the store {answered}, and {why}: its locks are others, so it is not used. \
             Does an address or path lead elsewhere, or was it set up anew?"
        );
        Error::new(ErrorKind::OtherStore, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_one_plain_word() {
        for bad in ["", "a b", "a/b", "\u{e9}", &"x".repeat(LONGEST + 1)] {
            assert_eq!(
                bad.parse::<StoreId>().unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
        let odd = StoreId::of("a b", "\u{e9}/\n".repeat(LONGEST));
        assert_eq!(odd.as_str().parse::<StoreId>().unwrap(), odd);
        assert!(odd.as_str().starts_with("a_b-___"));
    }

    #[test]
    fn the_first_identity_is_kept_and_another_one_is_news_once() {
        let [right, wrong] = ["1", "2"].map(|id| StoreId::of("x", id));
        for pin in [None, Some(right.clone())] {
            let identity = Identity::pinned(pin.clone());
            assert_eq!(identity.id(), pin);
            assert!(identity.check(&right).is_ok());
            let error = identity.check(&wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OtherStore);
            assert!(error.to_string().contains("x-1") && error.to_string().contains("x-2"));
            assert_eq!(identity.complaint().unwrap().to_string(), error.to_string());
            assert!(identity.check(&right).is_ok() && identity.complaint().is_none());
        }
    }
}
