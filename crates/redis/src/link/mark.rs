//! The mark of a database: a key with a random identity, which the first client writes.
//!
//! Each new connection reads it. A database that has the mark of another store is not used. One
//! without a mark may be new, or may have lost its data, as Redis does without persistence: it gets
//! the mark that the client knows. If another client was faster, the mark is younger than this
//! client's last connection to its database, and is taken over. So a server that other programs used
//! before is recognized, and an empty one is not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
}

impl StoreMark {
    /// The database with this identity is the right one, if one is given, and otherwise the first
    /// that answers.
    pub(crate) fn pinned(id: Option<StoreId>, key: String) -> StoreMark {
        StoreMark {
            key,
            identity: Identity::pinned(id),
            broke: AtomicU64::new(0),
        }
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

    /// Fails if a database with this mark is another store.
    pub(crate) fn check(&self, mark: &str) -> Result<()> {
        let (id, made) = mark.split_once(' ').unwrap_or((mark, "0"));
        let Ok(id) = id.parse::<StoreId>() else {
            let what = format!("the key {} is not Leasehold's: remove it", self.key);
            return Err(Error::new(ErrorKind::Corrupt, what));
        };
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
