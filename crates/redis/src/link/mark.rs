//! The mark of a database: a key with a random identity, which the first client writes.
//!
//! Each new connection reads it. A database that has the mark of another store is not used. One
//! without a mark may be new, or may have lost its data, as Redis does without persistence: it gets
//! the mark that the client knows. If another client was faster, the mark is younger than this
//! client's last connection to its database, and is taken over. So a server that other programs used
//! before is recognized, and an empty one is not.

#[cfg(feature = "redlock")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, Weak};

use leasehold_core::backend::{ClaimId, Identity};
use leasehold_core::support::wall;
use leasehold_core::{Error, ErrorKind, Result, StoreId};

/// By so much the clocks of two clients may differ, in microseconds.
const CLOCKS: u64 = 60_000_000;

/// The mark of a database, as far as a client knows it.
#[derive(Debug)]
pub(crate) struct StoreMark {
    /// The key.
    pub(crate) key: String,
    identity: Identity,
    /// The time at which the latest connection broke; 0 before that.
    broke: AtomicU64,
    /// The marks of the other nodes, where several databases have a vote each.
    others: OnceLock<Vec<Weak<StoreMark>>>,
}

impl StoreMark {
    /// The database with this identity is the right one, if one is given, and otherwise the first
    /// that answers.
    pub(crate) fn pinned(id: Option<StoreId>, key: String) -> StoreMark {
        StoreMark {
            key,
            identity: Identity::pinned(id),
            broke: AtomicU64::new(0),
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

    /// Notes that a connection to the database has broken.
    pub(crate) fn broke(&self) {
        self.broke.store(wall(), Relaxed);
    }

    /// The mark for a database that has none.
    pub(crate) fn new_mark(&self) -> String {
        let fresh = || StoreId::of("redis", ClaimId::fresh());
        format!("{} {}", self.id().unwrap_or_else(fresh), wall())
    }

    fn is_of_another_node(&self, id: &StoreId) -> bool {
        let mut others = self.others.get().into_iter().flatten();
        others.any(|other| other.upgrade().and_then(|other| other.id()).as_ref() == Some(id))
    }

    /// Fails if a database with this mark is another store.
    pub(crate) fn check(&self, mark: &str) -> Result<()> {
        let (id, made) = mark.split_once(' ').unwrap_or((mark, "0"));
        let Ok(id) = id.parse::<StoreId>() else {
            let what = format!("the key {} is not Leasehold's: remove it", self.key);
            return Err(Error::new(ErrorKind::Corrupt, what));
        };
        if self.is_of_another_node(&id) {
            let what = "it is the same server as another node of the list, or a replica of it, and one server has one vote";
            return Err(Error::new(ErrorKind::OtherStore, what));
        }
        let made: u64 = made.parse().unwrap_or_default();
        let broke = self.broke.load(Relaxed);
        let is_younger = broke != 0 && made.saturating_add(CLOCKS) > broke;
        if is_younger && !self.identity.is_pinned() {
            self.identity.renew(id);
            return Ok(());
        }
        self.identity.check(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_younger_mark_is_taken_over_and_an_older_one_is_another_store() {
        let mark = StoreMark::pinned(None, "{}:store".into());
        let first = mark.new_mark();
        mark.check(&first).unwrap();
        // While the database has its data, its mark is known.
        assert!(mark.new_mark().starts_with(&mark.id().unwrap().to_string()));
        let old = "redis-old 1";
        assert_eq!(mark.check(old).unwrap_err().kind(), ErrorKind::OtherStore);
        mark.broke();
        assert_eq!(mark.check(old).unwrap_err().kind(), ErrorKind::OtherStore);
        mark.check(&format!("redis-new {}", wall())).unwrap();
        assert_eq!(mark.id().unwrap().as_str(), "redis-new");
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
        two.broke();
        assert_eq!(two.check(&mark).unwrap_err().kind(), ErrorKind::OtherStore);
        two.check(&two.new_mark()).unwrap();
    }

    #[test]
    fn a_pinned_mark_is_never_replaced() {
        let id: StoreId = "redis-1".parse().unwrap();
        let mark = StoreMark::pinned(Some(id.clone()), "{}:store".into());
        mark.broke();
        let younger = format!("redis-2 {}", wall());
        assert_eq!(
            mark.check(&younger).unwrap_err().kind(),
            ErrorKind::OtherStore
        );
        assert_eq!(mark.id(), Some(id));
        let junk = mark.check("{\"not\": \"ours\"}").unwrap_err();
        assert_eq!(junk.kind(), ErrorKind::Corrupt);
    }
}
