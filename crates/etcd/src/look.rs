//! Looking at lines: who stands in one, which names have one; and ending somebody's hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, TxnOp};
use leasehold_core::seam::{Mode, place_of_token};
use leasehold_core::{Contention, FencingToken, LockQueue, Name, Result};
use leasehold_etcd_client::{Failure, oldest, put};

use crate::names::is_ours;
use crate::store::Store;
use crate::value::{entry, mode};

/// How much of a line is shown.
const SHOWN: i64 = 1000;

/// What a read says of a line.
pub(crate) struct Seen {
    prefix: Arc<str>,
    /// The oldest entries, in order.
    pub(crate) oldest: Vec<KeyValue>,
    /// How many there are.
    pub(crate) count: i64,
}

impl Seen {
    /// Without a read: an empty line.
    pub(crate) fn new(prefix: Arc<str>, read: Option<&GetResponse>) -> Seen {
        let (oldest, count) = read.map(|read| (read.kvs().to_vec(), read.count())).unwrap_or_default();
        Seen { prefix, oldest, count }
    }

    fn line(&self) -> LockQueue {
        LockQueue::in_order(self.oldest.iter().map(|kv| entry(&self.prefix, kv)))
    }

    /// The modes of those who stand before the entry with this create_revision.
    pub(crate) fn before(&self, created: i64) -> Vec<Mode> {
        let older = self.oldest.iter().take_while(|entry| entry.create_revision() < created);
        older.map(|entry| mode(&self.prefix, entry)).collect()
    }

    /// Who holds; `others`: how many stand in it, whoever asks not counted.
    pub(crate) fn contention(&self, others: i64) -> Contention {
        let line = self.line();
        // Whether more hold than were read cannot be known, unless the first excludes them.
        let all = i64::try_from(self.oldest.len()).is_ok_and(|read| read == self.count);
        let known = all || self.oldest.first().map(|kv| mode(&self.prefix, kv)) == Some(Mode::Exclusive);
        let waiters = usize::try_from(others).unwrap_or(0).saturating_sub(line.holders.len());
        let mut who = line.contention();
        who.waiters = known.then_some(waiters);
        who
    }
}

impl Store {
    /// Reads so many of a line's oldest, all of it for 0.
    async fn look(&self, name: &Name, limit: i64) -> Result<Seen, Failure> {
        let prefix = self.keys.line(name);
        let read = self.cluster.get(&*prefix, oldest(limit)).await?;
        Ok(Seen::new(prefix, Some(&read)))
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        Ok(self.look(name, SHOWN).await?.line())
    }

    /// Ends the hold with this token, and notes under its session's lease that it did: without the note, if the server stores
    /// nothing more.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let (line, created) = (self.look(name, 0).await?, place_of_token(token));
        let mut holds = line.oldest.iter().take(line.line().holders.len());
        let Some(hold) = holds.find(|hold| hold.create_revision() == created) else { return Ok(false) };
        let mut then = vec![TxnOp::delete(hold.key(), None)];
        if is_ours(&line.prefix, hold.key()) {
            let key = hold.key_str().unwrap_or_default();
            then.push(put(hold.lease(), &self.keys.eviction(created, key), ""));
        }
        let still = Compare::create_revision(hold.key(), CompareOp::Equal, created);
        let delete = vec![then[0].clone()];
        match self.cluster.change(still.clone(), then).await {
            // Its holder learns it from its next renewal.
            Err(failure) if failure.is_full() => Ok(self.cluster.change(still, delete).await?),
            evicted => Ok(evicted?),
        }
    }

    /// Reads all keys under the prefix: they are not in the order of the names (`a!/` comes before `a/`), so the first
    /// names cannot be told before the last key was seen.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
        let mut names = BTreeSet::new();
        let tell = |key: &str| names.extend(self.keys.name_of(key).filter(wanted));
        self.cluster.keys(&self.keys.names(prefix), tell).await?;
        Ok(names.into_iter().take(limit).collect())
    }
}
