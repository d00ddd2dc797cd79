//! The rows of the queues: modes, places and grants as they are written and read. `schema.sql` has
//! the tables.

use std::io::Write;
use std::time::{Duration, SystemTime};

use leasehold_core::FencingToken;
use leasehold_core::backend::{ClaimId, Grant, Mode, Moment, Place, Validity};
use rusqlite::types::{ToSql, ToSqlOutput, Type, ValueRef};
use rusqlite::{Result, Row};

use crate::client::fifo::Address;

/// A query of the columns that [`Entry::read`] reads, from
/// `place p JOIN session s ON s.id = p.session`.
macro_rules! entries {
    ($tail:literal) => {
        concat!(
            "SELECT p.seq, p.mode, p.n, p.permits, p.turns, p.token, p.label, p.since, p.claim, ",
            "s.ttl, s.until, s.fifo, s.dev, s.ino, p.floor FROM place p JOIN session s ON s.id = p.session ",
            $tail
        )
    };
}
pub(crate) use entries;

/// One place in a queue, and the session that keeps it.
pub(crate) struct Entry {
    pub(crate) seq: i64,
    pub(crate) mode: Mode,
    pub(crate) turns: u32,
    pub(crate) token: Option<i64>,
    pub(crate) label: String,
    pub(crate) since: i64,
    pub(crate) claim: ClaimId,
    pub(crate) ttl: i64,
    pub(crate) until: i64,
    pub(crate) client: Address,
    /// The least token that a waiter may be granted.
    pub(crate) floor: i64,
}

impl Entry {
    pub(crate) fn read(row: &Row<'_>) -> Result<Entry> {
        let (mode, claim): (String, String) = (row.get(1)?, row.get(8)?);
        Ok(Entry {
            seq: row.get(0)?,
            mode: Mode::from_parts(&mode, row.get(2)?, row.get(3)?)
                .ok_or_else(|| junk(1, "mode"))?,
            turns: row.get(4)?,
            token: row.get(5)?,
            label: row.get(6)?,
            since: row.get(7)?,
            claim: ClaimId::parse(&claim).ok_or_else(|| junk(8, "claim"))?,
            ttl: row.get(9)?,
            until: row.get(10)?,
            client: Address {
                fifo: row.get(11)?,
                dev: row.get(12)?,
                ino: row.get(13)?,
            },
            floor: row.get(14)?,
        })
    }

    pub(crate) fn place(&self) -> Place {
        place(self.seq)
    }

    pub(crate) fn validity(&self) -> Validity {
        validity(self.ttl, self.until)
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        let token = self.token.map(token)?;
        Some(Grant::new(self.place(), token, self.validity()).turns(self.turns))
    }

    /// The entry as `inspect` shows it.
    pub(crate) fn shown(&self) -> leasehold_core::Participant {
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(self.since as u64);
        let mut shown = leasehold_core::Participant::new(&*self.label)
            .since(since)
            .mode(self.mode);
        shown.token = self.token.map(token);
        shown
    }
}

/// The validity of a session with this end, which counts from the update that set that end.
pub(crate) fn validity(ttl: i64, until: i64) -> Validity {
    let ttl = ttl.max(0) as u64;
    let until = until.max(0) as u64;
    Validity::since(
        Moment::from_nanos(until.saturating_sub(ttl)),
        Duration::from_nanos(ttl),
    )
}

pub(crate) fn place(seq: i64) -> Place {
    Place::new(seq.to_string())
}

pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::new(number.max(0) as u64)
}

fn junk(column: usize, what: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        column,
        Type::Text,
        format!("no {what} of ours").into(),
    )
}

/// A claim's id in the form of the rows.
pub(crate) struct Id([u8; 32]);

impl From<ClaimId> for Id {
    fn from(claim: ClaimId) -> Id {
        let mut id = Id([0; 32]);
        // An id has 32 digits, so it fits.
        let _ = write!(&mut id.0[..], "{claim}");
        id
    }
}

impl ToSql for Id {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;
    use rusqlite::types::Value;
    use rusqlite::{Connection, params_from_iter};

    use super::*;

    /// The columns of a row: they are separated by tabs, and each is a number, `null`, bytes that
    /// are no text, or a text.
    fn columns(row: &[u8]) -> Vec<Value> {
        let column = |bytes: &[u8]| match str::from_utf8(bytes) {
            Ok("null") => Value::Null,
            Ok(text) => match text.parse() {
                Ok(number) => Value::Integer(number),
                Err(_) => text
                    .parse()
                    .map_or_else(|_| Value::Text(text.to_owned()), Value::Real),
            },
            Err(_) => Value::Blob(bytes.to_vec()),
        };
        let mut columns: Vec<Value> = row
            .split(|byte| *byte == b'\t')
            .take(15)
            .map(column)
            .collect();
        columns.resize(15, Value::Null);
        columns
    }

    #[test]
    fn whatever_a_row_says_it_is_read_or_refused() {
        let file = Connection::open_in_memory().unwrap();
        let mut select = file
            .prepare("SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15")
            .unwrap();
        let good = include_str!("../corpus/rows")
            .lines()
            .next()
            .unwrap()
            .replace("\\t", "\t");
        let read = select
            .query_row(params_from_iter(columns(good.as_bytes())), Entry::read)
            .unwrap();
        assert_eq!(
            (read.seq, read.token, &*read.label, read.since),
            (7, Some(9), "web-1", 1_795_000_000_000)
        );
        let select = std::cell::RefCell::new(select);
        fuzz(include_str!("../corpus/rows"), |row| {
            let Ok(entry) = select
                .borrow_mut()
                .query_row(params_from_iter(columns(row)), Entry::read)
            else {
                return;
            };
            let (kind, n, of) = entry.mode.parts();
            assert_eq!(Mode::from_parts(kind, n, of), Some(entry.mode));
            assert_eq!(entry.place().as_str(), entry.seq.to_string());
            let shown = format!(
                "{:?} {:?} {:?}",
                entry.shown(),
                entry.grant(),
                entry.validity().until(Moment::now())
            );
            assert!(!shown.contains(&entry.claim.to_string()), "{shown}");
        });
    }

    #[test]
    fn a_holder_has_a_token_and_a_grant_and_a_waiter_has_none() {
        let second = 1_000_000_000;
        let mut entry = Entry {
            seq: 7,
            mode: Mode::Shared,
            turns: 9,
            token: Some(8),
            label: "web-1".to_owned(),
            since: 5,
            claim: ClaimId::fresh(),
            ttl: second,
            until: 3 * second,
            client: Address {
                fifo: 1,
                dev: 1,
                ino: 1,
            },
            floor: 0,
        };
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(5);
        let shown = leasehold_core::Participant::new("web-1")
            .since(since)
            .mode(Mode::Shared);
        assert_eq!(entry.shown(), shown.clone().token(FencingToken::new(8)));
        let grant = entry.grant().unwrap();
        assert_eq!(
            (grant.place, grant.token.get(), grant.turns),
            (place(7), 8, 9)
        );
        let began = Moment::from_nanos(2 * second as u64);
        let late = Moment::from_nanos(9 * second as u64);
        let good = Validity::since(began, Duration::from_secs(1));
        assert_eq!(
            grant.validity.until(late),
            good.until(late),
            "it counts from the update that began it"
        );
        entry.token = None;
        assert!(entry.grant().is_none() && entry.shown() == shown);
    }
}
