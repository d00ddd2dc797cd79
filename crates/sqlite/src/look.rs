//! Looking on: inspect, list. Only reads, which wait for nobody.

use leasehold_core::{LockQueue, Name, Result};
use rusqlite::params;

use crate::client::{Client, limit, now};
use crate::error;
use crate::fifo::Address;
use crate::file::wait_until;
use crate::row::{Standing, standings};

impl Client {
    pub(crate) fn inspect(&mut self, name: &Name) -> Result<LockQueue> {
        self.catch_up()?;
        let read = || -> rusqlite::Result<LockQueue> {
            let find = standings!("WHERE p.name = ?1 AND s.until > ?2 ORDER BY p.seq");
            let mut find = self.file.connection.prepare_cached(find)?;
            let mut line = LockQueue::default();
            for standing in find.query_map(params![name.as_str(), now()], Standing::read)? {
                let standing = standing?;
                let side = if standing.token.is_some() { &mut line.holders } else { &mut line.waiters };
                side.push(standing.entry());
            }
            Ok(line)
        };
        read().map_err(|e| error::of(&e, &self.file.path))
    }

    pub(crate) fn list(&mut self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.catch_up()?;
        let read = || -> rusqlite::Result<Vec<Name>> {
            let find = "SELECT DISTINCT p.name FROM place p JOIN session s ON s.id = p.session
                        WHERE p.name >= ?1 AND p.name > ?2 AND s.until > ?3 ORDER BY p.name";
            let mut find = self.file.connection.prepare_cached(find)?;
            let after = after.map_or("", Name::as_str);
            let names = find.query_map(params![prefix, after, now()], |row| row.get::<_, String>(0))?;
            let ours = |name: &rusqlite::Result<String>| name.as_ref().map_or(true, |name| name.starts_with(prefix));
            names.take_while(ours).take(limit).map(|name| name.map(Name::new)).collect()
        };
        read().map_err(|e| error::of(&e, &self.file.path))
    }

    /// The FIFOs of all clients that have something in the file.
    pub(crate) fn clients(&self) -> Result<Vec<Address>> {
        let read = || -> rusqlite::Result<Vec<Address>> {
            let all = "SELECT fifo, dev, ino FROM session WHERE fifo > 0 UNION SELECT fifo, dev, ino FROM observer";
            self.file.connection.prepare(all)?.query_map([], Address::read)?.collect()
        };
        read().map_err(|e| error::of(&e, &self.file.path))
    }

    /// Whether there are holds that have lapsed by themselves.
    pub(crate) fn has_lapsed(&self) -> Result<bool> {
        let any = "SELECT EXISTS (SELECT 1 FROM session WHERE id < 0 AND until <= ?1)";
        let any = self.file.connection.query_row(any, [now()], |row| row.get(0));
        any.map_err(|e| error::of(&e, &self.file.path))
    }

    /// Looks at the file that is at the path now.
    fn catch_up(&mut self) -> Result<()> {
        wait_until(limit(None));
        if self.file.is_current() { Ok(()) } else { self.reopen() }
    }
}
