//! The rows of lines: how a mode, a place and a grant are written and read.

use std::time::{Duration, SystemTime};

use leasehold_core::seam::{ClaimId, Grant, Mode, Moment, Place, Validity};
use leasehold_core::{Entry, FencingToken};
use rusqlite::Row;
use rusqlite::types::Type;

/// One place in a line.
pub(crate) struct Standing {
    pub(crate) seq: i64,
    pub(crate) claim: ClaimId,
    pub(crate) fifo: i64,
    pub(crate) mode: Mode,
    label: String,
    ttl: Duration,
    /// When its lease ends, on CLOCK_BOOTTIME.
    until: Duration,
    pub(crate) turns: u32,
    pub(crate) token: Option<FencingToken>,
    /// When it took its place or was granted, on the wall clock.
    since: Duration,
}

impl Standing {
    /// Reads a whole row of `place`.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Standing> {
        let (word, claim): (String, String) = (row.get("mode")?, row.get("claim")?);
        let millis = |column| row.get(column).map(|ms: i64| Duration::from_millis(ms.max(0) as u64));
        Ok(Standing {
            seq: row.get("seq")?,
            claim: ClaimId::parse(&claim).ok_or_else(|| junk("claim"))?,
            fifo: row.get("fifo")?,
            mode: mode(&word, row.get("n")?, row.get("permits")?).ok_or_else(|| junk("mode"))?,
            label: row.get("label")?,
            ttl: millis("ttl")?,
            until: millis("until")?,
            turns: row.get("turns")?,
            token: row.get::<_, Option<i64>>("token")?.map(|number| FencingToken::new(number.max(0) as u64)),
            since: millis("since")?,
        })
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(self.seq.to_string())
    }

    /// Its lease, from the transaction that began it.
    pub(crate) fn validity(&self) -> Validity {
        Validity::since(Moment::from_nanos(0) + self.until.saturating_sub(self.ttl), self.ttl)
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        Some(Grant::new(self.place(), self.token?, self.validity()).turns(self.turns))
    }

    pub(crate) fn entry(&self) -> Entry {
        let mut entry = Entry::new(&*self.label).since(SystemTime::UNIX_EPOCH + self.since);
        entry.token = self.token;
        entry
    }
}

/// How a mode is written: its word, and its permits.
pub(crate) fn columns(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("exclusive", 0, 0),
        Mode::Shared => ("shared", 0, 0),
        Mode::Permits { n, of } => ("permits", n, of),
    }
}

fn mode(word: &str, n: u32, of: u32) -> Option<Mode> {
    match word {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        "permits" => Some(Mode::Permits { n, of }),
        _ => None,
    }
}

fn junk(what: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, format!("no {what} of ours").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_come_back_and_junk_does_not() {
        for all in [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: u32::MAX }] {
            let (word, n, of) = columns(all);
            assert_eq!(mode(word, n, of), Some(all));
        }
        assert_eq!(mode("", 0, 0), None);
    }
}
