//! Looking at lines from outside: who stands in one, which names have one; and ending somebody's hold.

use std::collections::BTreeSet;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, TxnOp};
use leasehold_core::seam::{Mode, place_of_token};
use leasehold_core::{Contention, FencingToken, Line, Name, Result};

use crate::names::{after_prefix, is_ours};
use crate::store::{Store, by_age, put};
use crate::value::{entry, mode};

/// How much of a line is shown.
const SHOWN: i64 = 1000;
/// How many keys one request brings while names are listed.
const PAGE: i64 = 500;

/// The line of which this is a read of the oldest entries.
pub(crate) fn as_read(prefix: &str, oldest: &GetResponse) -> Line {
    Line::in_order(oldest.kvs().iter().map(|kv| entry(prefix, kv)))
}

/// Who holds, from a read of the line's oldest; `others`: how many stand in it, whoever asks not counted.
pub(crate) fn contention(prefix: &str, oldest: &GetResponse, others: i64) -> Contention {
    let line = as_read(prefix, oldest);
    // Whether more hold than were read cannot be known, unless the first excludes them.
    let first = oldest.kvs().first().map(|kv| mode(prefix, kv));
    let known = !oldest.more() || first == Some(Mode::Exclusive);
    let waiters = usize::try_from(others).unwrap_or(0).saturating_sub(line.holders.len());
    let mut who = line.contention();
    who.waiters = known.then_some(waiters);
    who
}

impl Store {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Line> {
        self.open()?;
        let line = self.keys.line(name);
        let read = self.get(&*line, by_age(SHOWN)).await?;
        Ok(as_read(&line, &read))
    }

    /// Ends the hold with this token, and notes under its session's lease that it did.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.open()?;
        let (prefix, created) = (self.keys.line(name), place_of_token(token));
        let read = self.get(&*prefix, by_age(0)).await?;
        let holders = as_read(&prefix, &read).holders.len();
        let mut holds = read.kvs().iter().take(holders);
        let Some(hold) = holds.find(|hold| hold.create_revision() == created) else { return Ok(false) };
        let mut then = vec![TxnOp::delete(hold.key(), None)];
        if is_ours(&prefix, hold.key()) {
            let key = hold.key_str().unwrap_or_default();
            then.push(put(hold.lease(), &self.keys.eviction(created, key), ""));
        }
        let still = Compare::create_revision(hold.key(), CompareOp::Equal, created);
        Ok(self.change(still, then).await?)
    }

    /// Reads all keys under the prefix: they are not in the order of the names (`a!/` comes before `a/`), so the first
    /// names cannot be told before the last key was seen.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.open()?;
        let start = self.keys.names(prefix);
        let end = after_prefix(&start);
        // No key is empty.
        let mut from = if start.is_empty() { vec![0] } else { start.into_bytes() };
        let mut names = BTreeSet::new();
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_keys_only();
            let page = self.get(from, page).await?;
            let keys = page.kvs().iter().filter_map(|entry| entry.key_str().ok());
            let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
            names.extend(keys.filter_map(|key| self.keys.name_of(key)).filter(wanted));
            match page.kvs().last().filter(|_| page.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(names.into_iter().take(limit).collect()),
            }
        }
    }
}
