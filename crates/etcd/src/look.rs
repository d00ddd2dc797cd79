//! Looking without touching: who stands in a line, and which names have one.

use std::collections::BTreeSet;

use etcd_client::{GetOptions, KeyValue};
use leasehold_core::{Entry, Line, Name, Result};

use crate::names::{after_prefix, is_ours};
use crate::store::{Store, by_age, holding};
use crate::table::token;
use crate::value::Value;

/// How much of a line is shown.
const SHOWN: i64 = 1000;
/// How many keys one request brings while names are listed.
const PAGE: i64 = 500;

impl Store {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Line> {
        self.open()?;
        let line = self.keys.line(name);
        let read = self.get(&*line, by_age(SHOWN)).await?;
        let entry = |entry: &KeyValue| {
            if !is_ours(&line, entry.key()) {
                return Entry::foreign();
            }
            let said = Value::read(entry.value());
            said.since.into_iter().fold(Entry::new(said.label), Entry::since)
        };
        let hold = |hold: &KeyValue| entry(hold).token(token(hold.create_revision()));
        let (held, waited) = read.kvs().split_at(holding(&line, &read));
        Ok(Line::new(held.iter().map(hold).collect(), waited.iter().map(entry).collect()))
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
