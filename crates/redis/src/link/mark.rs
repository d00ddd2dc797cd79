//! The mark of a database: a key with a random identity, which the first client writes.
//!
//! Redis may lose its data at a restart, and the key with them, so an unknown mark does not show
//! another store: a client goes on with it, and says so. Two uses are strict. A client whose URL
//! names the identity uses no other database. And the nodes of a Redlock have a mark each: a node
//! with the mark of another one is the same server, which has one vote.

#[cfg(feature = "redlock")]
use std::sync::Arc;
use std::sync::{OnceLock, Weak};

use leasehold_core::backend::{ClaimId, Identity};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result, StoreId};

/// The mark of a database, as far as a client knows it.
#[derive(Debug)]
pub(crate) struct StoreMark {
    /// The key.
    pub(crate) key: String,
    identity: Identity,
    /// The marks of the other nodes, where several databases have a vote each.
    others: OnceLock<Vec<Weak<StoreMark>>>,
}

impl StoreMark {
    /// Only the database with this identity is right, if one is given.
    pub(crate) fn pinned(id: Option<StoreId>, key: String) -> StoreMark {
        StoreMark {
            key,
            identity: Identity::pinned(id),
            others: OnceLock::new(),
        }
    }

    /// The marks of this number of nodes, which are to be different databases.
    #[cfg(feature = "redlock")]
    pub(crate) fn of_nodes(count: usize, key: &str) -> Vec<Arc<StoreMark>> {
        let mark = |_| Arc::new(StoreMark::pinned(None, key.to_owned()));
        let all: Vec<_> = (0..count).map(mark).collect();
        for mark in &all {
            let others = all.iter().filter(|other| !Arc::ptr_eq(mark, other));
            // Nobody else knows these marks yet.
            let _ = mark.others.set(others.map(Arc::downgrade).collect());
        }
        all
    }

    pub(crate) fn id(&self) -> Option<StoreId> {
        self.identity.id()
    }

    /// Returns whether no other database may be used, so that each has to show its mark.
    pub(crate) fn is_pinned(&self) -> bool {
        self.identity.is_pinned()
    }

    /// The mark for a database that has none.
    pub(crate) fn new_mark(&self) -> String {
        let fresh = || StoreId::of("redis", ClaimId::fresh());
        self.id().unwrap_or_else(fresh).to_string()
    }

    fn is_of_another_node(&self, id: &StoreId) -> bool {
        let mut others = self.others.get().into_iter().flatten();
        others.any(|other| other.upgrade().and_then(|other| other.id()).as_ref() == Some(id))
    }

    fn read(&self, mark: &str) -> Result<StoreId> {
        mark.parse().map_err(|_| {
            let what = format!("the key {} is not Leasehold's: remove it", self.key);
            Error::new(ErrorKind::Corrupt, what)
        })
    }

    /// Fails unless the database that has this mark, or none, is the known one. This is for a
    /// database that looks as another one, so that a loss of data is no excuse.
    pub(crate) fn confirm(&self, mark: Option<&str>) -> Result<()> {
        let key = &self.key;
        let Some(id) = self.id() else {
            let what = format!(
                "the server may belong to another store than before, and this client does not know the mark of its own, the key {key}: \
                 the server is not used. Does an address lead elsewhere, or was a server set up anew? (If it is the right one: \
                 let this user read and write {key}, and restart this program)"
            );
            return Err(Error::new(ErrorKind::OtherStore, what));
        };
        let (shown, has) = match mark {
            Some(mark) => (self.read(mark)?, "another text in the key"),
            None => (StoreId::of("redis", "unmarked"), "no key"),
        };
        self.identity.check(&shown).map_err(|e| {
            let restart = match self.is_pinned() {
                true => "",
                false => "restart each program that says this, or ",
            };
            let what = format!(
                "{e} (It has {has} {key}. If it is the right one, and has lost its data: {restart}SET {key} {id})"
            );
            Error::new(e.kind(), what)
        })
    }

    /// Fails if a database with this mark may not be used.
    pub(crate) fn check(&self, mark: &str) -> Result<()> {
        let id = self.read(mark)?;
        if self.is_of_another_node(&id) && !fault("any-store") {
            let what = format!(
                "it is one and the same server as another node of the list, or a copy of it, which has only one vote \
                 (if it was made from a copy of that node's data, delete {} there)",
                self.key
            );
            return Err(Error::new(ErrorKind::OtherStore, what));
        }
        if self.is_pinned() {
            return self.identity.check(&id);
        }
        self.identity.renew(&id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_an_emptied_database_is_taken_over() {
        let mark = StoreMark::pinned(None, "{}:store".into());
        let first = mark.new_mark();
        mark.check(&first).unwrap();
        // A database without a mark gets the one that is known.
        assert_eq!(mark.new_mark(), first);
        mark.check("redis-other").unwrap();
        assert_eq!(mark.new_mark(), "redis-other");
        let junk = mark.check("{\"not\": \"ours\"}").unwrap_err();
        assert_eq!(junk.kind(), ErrorKind::Corrupt);
    }

    #[cfg(feature = "redlock")]
    #[test]
    fn two_nodes_never_have_one_mark() {
        let [one, two] = &StoreMark::of_nodes(2, "{}:store")[..] else {
            panic!("two nodes");
        };
        let mark = one.new_mark();
        one.check(&mark).unwrap();
        one.check(&mark).unwrap();
        assert_eq!(two.check(&mark).unwrap_err().kind(), ErrorKind::OtherStore);
        two.check(&two.new_mark()).unwrap();
    }

    #[test]
    fn a_database_that_looks_as_another_one_needs_the_known_mark() {
        let other = |mark: &StoreMark, shown| mark.confirm(shown).unwrap_err().kind();
        let mark = StoreMark::pinned(None, "{}:store".into());
        // Nothing is known to compare.
        assert_eq!(other(&mark, Some("redis-1")), ErrorKind::OtherStore);
        mark.check("redis-1").unwrap();
        mark.confirm(Some("redis-1")).unwrap();
        assert_eq!(other(&mark, Some("{}")), ErrorKind::Corrupt);
        // One that is the right one after all can be made so.
        for shown in [Some("redis-2"), None] {
            let refused = mark.confirm(shown).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OtherStore);
            let hint = refused.to_string();
            assert!(
                hint.contains("restart") && hint.contains("SET {}:store redis-1"),
                "{hint}"
            );
        }
        assert_eq!(mark.id().unwrap().as_str(), "redis-1");
    }

    #[test]
    fn a_pinned_mark_is_never_replaced() {
        let id: StoreId = "redis-1".parse().unwrap();
        let mark = StoreMark::pinned(Some(id.clone()), "{}:store".into());
        let refused = mark.check("redis-2").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OtherStore);
        assert_eq!(mark.new_mark(), id.to_string());
        mark.check("redis-1").unwrap();
    }
}
