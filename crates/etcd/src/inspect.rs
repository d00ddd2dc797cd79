//! The holders and waiters of a name, and the list of names that are held or waited for.

use std::collections::BTreeSet;
use std::sync::Arc;

use etcd_client::{GetResponse, KeyValue};
use leasehold_core::backend::Mode;
use leasehold_core::{Contention, LockQueue, Name, Result};

use crate::claim::shared::Shared;
use crate::client::cluster::oldest;
use crate::entry::{mode, participant};
use crate::error::Failure;

/// The keys of one name, as they were read.
pub(crate) struct Read {
    pub(crate) prefix: Arc<str>,
    /// The oldest, in order.
    pub(crate) oldest: Vec<KeyValue>,
    /// The number of all keys of the name.
    pub(crate) count: i64,
}

impl Read {
    /// Takes the keys from an answer; without one there are none.
    pub(crate) fn new(prefix: Arc<str>, read: Option<&GetResponse>) -> Read {
        let (oldest, count) = read
            .map(|read| (read.kvs().to_vec(), read.count()))
            .unwrap_or_default();
        Read {
            prefix,
            oldest,
            count,
        }
    }

    pub(crate) fn lock_queue(&self) -> LockQueue {
        LockQueue::in_order(self.oldest.iter().map(|kv| participant(&self.prefix, kv)))
    }

    /// The modes of the entries before the one with this create_revision.
    pub(crate) fn before(&self, created: i64) -> Vec<Mode> {
        let older = self
            .oldest
            .iter()
            .take_while(|entry| entry.create_revision() < created);
        older.map(|entry| mode(&self.prefix, entry)).collect()
    }

    /// The first holder, and the number of waiters; `others` is the number of entries beside the
    /// claim that asks.
    pub(crate) fn contention(&self, others: i64) -> Contention {
        let read = self.lock_queue();
        // If not all entries were read, more of them may hold, unless the first one excludes them.
        let all = i64::try_from(self.oldest.len()).is_ok_and(|read| read == self.count);
        let known =
            all || self.oldest.first().map(|kv| mode(&self.prefix, kv)) == Some(Mode::Exclusive);
        let waiters = usize::try_from(others)
            .unwrap_or(0)
            .saturating_sub(read.holders.len());
        let mut who = read.contention();
        who.waiters = known.then_some(waiters);
        who
    }
}

impl Shared {
    pub(crate) async fn read(&self, name: &Name) -> Result<Read, Failure> {
        let prefix = self.keys.prefix(name);
        let read = self.cluster.get(&*prefix, oldest(0)).await?;
        Ok(Read::new(prefix, Some(&read)))
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        Ok(self.read(name).await?.lock_queue())
    }

    /// Reads all keys under the prefix. They are not in the order of the names (`a!/` comes before
    /// `a/`), so the first names are not known before the last key was seen.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let wanted = |name: &Name| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
        };
        let mut names = BTreeSet::new();
        let visit = |key: &str| names.extend(self.keys.name_of(key).filter(wanted));
        self.cluster.keys(&self.keys.names(prefix), visit).await?;
        Ok(names.into_iter().take(limit).collect())
    }
}
