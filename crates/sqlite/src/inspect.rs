//! `inspect` and `list`: they only read, and wait for no other client.

use leasehold_core::{LockQueue, Name, Result};
use rusqlite::params;

use crate::client::time::now;
use crate::client::worker::Client;
use crate::entry::{Entry, entries};

impl Client {
    pub(crate) fn inspect(&mut self, name: &Name) -> Result<LockQueue> {
        self.catch_up()?;
        self.read(|connection| {
            let mut find = connection.prepare_cached(entries!(
                "WHERE p.name = ?1 AND s.until > ?2 ORDER BY p.seq"
            ))?;
            let entries = find.query_map(params![name.as_str(), now()], Entry::read)?;
            let entries = entries.collect::<rusqlite::Result<Vec<_>>>()?;
            let (holders, waiters) = entries
                .iter()
                .map(Entry::shown)
                .partition(|entry| entry.token.is_some());
            Ok(LockQueue::new(holders, waiters))
        })
    }

    pub(crate) fn list(
        &mut self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.catch_up()?;
        self.read(|connection| {
            let find = "SELECT DISTINCT p.name FROM place p JOIN session s ON s.id = p.session
                        WHERE p.name >= ?1 AND p.name > ?2 AND s.until > ?3 ORDER BY p.name";
            let mut find = connection.prepare_cached(find)?;
            let after = after.map_or("", Name::as_str);
            let names =
                find.query_map(params![prefix, after, now()], |row| row.get::<_, String>(0))?;
            let ours = |name: &rusqlite::Result<String>| {
                name.as_ref().map_or(true, |name| name.starts_with(prefix))
            };
            names
                .take_while(ours)
                .take(limit)
                .map(|name| name.map(Name::new))
                .collect()
        })
    }
}
