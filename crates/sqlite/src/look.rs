//! Looking on: inspect, list. Only reads, which wait for nobody.

use leasehold_core::{Line, Name, Result};
use rusqlite::params;

use crate::client::{Client, now};
use crate::error::About;
use crate::row::Standing;

impl Client {
    pub(crate) fn inspect(&mut self, name: &Name) -> Result<Line> {
        self.catch_up()?;
        let read = || -> rusqlite::Result<Line> {
            let find = "SELECT * FROM place WHERE name = ?1 AND until > ?2 ORDER BY seq";
            let mut find = self.file.connection.prepare_cached(find)?;
            let mut line = Line::default();
            for standing in find.query_map(params![name.as_str(), now()], Standing::read)? {
                let standing = standing?;
                let side = if standing.token.is_some() { &mut line.holders } else { &mut line.waiters };
                side.push(standing.entry());
            }
            Ok(line)
        };
        read().about(&self.file.path)
    }

    pub(crate) fn list(&mut self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.catch_up()?;
        let read = || -> rusqlite::Result<Vec<Name>> {
            let find = "SELECT DISTINCT name FROM place WHERE name >= ?1 AND name > ?2 AND until > ?3 ORDER BY name";
            let mut find = self.file.connection.prepare_cached(find)?;
            let after = after.map_or("", Name::as_str);
            let names = find.query_map(params![prefix, after, now()], |row| row.get::<_, String>(0))?;
            let ours = |name: &rusqlite::Result<String>| name.as_ref().map_or(true, |name| name.starts_with(prefix));
            names.take_while(ours).take(limit).map(|name| name.map(Name::new)).collect()
        };
        read().about(&self.file.path)
    }

    /// Looks at the file that is at the path now.
    fn catch_up(&mut self) -> Result<()> {
        if self.file.is_current().about(&self.file.path)? { Ok(()) } else { self.reopen() }
    }
}
