//! Completions: `complete`, and the completion that a claim meets. They are in a second file, which
//! outlives the boot; [`completed`](crate::client::completed) says how it is kept.

use std::time::{Duration, SystemTime};

use leasehold_core::backend::{
    Claim, ClaimId, Complete, Completed, Completions, Moment, async_trait,
};
use leasehold_core::{Completion, Error, ErrorKind, FencingToken, Keep, Name, Result};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::Sqlite;
use crate::claim::queue::{Message, Queues, REMOVE};
use crate::client::completed::{CompletedFile, Wanted, failed};
use crate::client::fifo::Address;
use crate::client::time::{limit, nanos, now, wait_until, wall};
use crate::client::words::Word;
use crate::client::worker::Client;
use crate::entry::{Id, token};

/// The number of waiters that one transaction tells at most.
const TOLD: usize = 500;
/// The number of ended completions that one transaction removes at most, of this boot and of all
/// others each.
const SWEPT: i64 = 64;

/// Selects the columns that [`Record::read`] reads.
macro_rules! records {
    ($tail:literal) => {
        concat!(
            "SELECT name, claim, token, label, at, boot, until, wall, fire, result, is_cut FROM done ",
            $tail
        )
    };
}

/// A completion as it is in its row.
struct Record {
    name: String,
    claim: ClaimId,
    completion: Completion,
    boot: String,
    /// The end on CLOCK_BOOTTIME, in that boot.
    until: Option<i64>,
    /// The end on the wall clock, in milliseconds.
    wall: Option<i64>,
}

impl Record {
    fn read(row: &Row<'_>) -> rusqlite::Result<Record> {
        let junk = |column| {
            let what = "no value of ours".into();
            rusqlite::Error::FromSqlConversionFailure(column, Type::Text, what)
        };
        let claim: String = row.get(1)?;
        let number = |column| row.get::<_, i64>(column);
        let at = u64::try_from(number(4)?).map_err(|_| junk(4))?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at);
        let label: String = row.get(3)?;
        let mut completion = Completion::new(token(number(2)?), label, at);
        completion.fire = number(8)? as u64;
        completion.result = row.get::<_, Option<String>>(9)?.map(Into::into);
        completion.is_cut = row.get(10)?;
        let record = Record {
            name: row.get(0)?,
            claim: ClaimId::parse(&claim).ok_or_else(|| junk(1))?,
            completion,
            boot: row.get(5)?,
            until: row.get(6)?,
            wall: row.get(7)?,
        };
        match record.until.is_some() == record.wall.is_some() {
            true => Ok(record),
            false => Err(junk(6)),
        }
    }

    /// The time for which it still counts: `Some(None)` is for ever, and `None` that it has ended.
    /// In another boot than its own, only the wall clock says that.
    fn left(&self, boot: &str) -> Option<Option<Duration>> {
        let (Some(until), Some(end)) = (self.until, self.wall) else {
            return Some(None);
        };
        let left = match self.boot == boot {
            true => until.saturating_sub(now()),
            false => {
                let left = end.saturating_sub(wall().as_millis() as i64);
                left.saturating_mul(1_000_000)
            }
        };
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        Some(Some(Duration::from_nanos(left)))
    }

    /// The completion as others see it; `None` if it has ended.
    fn counting(self, boot: &str) -> Option<(ClaimId, Completion)> {
        let left = self.left(boot)?;
        let mut completion = self.completion;
        completion.left = left;
        Some((self.claim, completion))
    }
}

/// The columns of a new row that say until when it counts.
fn end_of(keep: Keep) -> (Option<i64>, Option<i64>) {
    let Keep::For(keep) = keep else {
        return (None, None);
    };
    // Rounded up: a keep ends later, never sooner.
    let end = (wall().saturating_add(keep)).as_nanos().div_ceil(1_000_000);
    (
        Some(now().saturating_add(nanos(keep))),
        Some(i64::try_from(end).unwrap_or(i64::MAX)),
    )
}

fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<Record>> {
    let find = records!("WHERE name = ?1");
    connection
        .prepare_cached(find)?
        .query_row([name], Record::read)
        .optional()
}

/// Removes a limited number of completions that have ended.
fn sweep(connection: &Connection, boot: &str) -> rusqlite::Result<()> {
    let of_this_boot = "DELETE FROM done WHERE name IN
        (SELECT name FROM done WHERE boot = ?1 AND until <= ?2 ORDER BY until LIMIT ?3)";
    connection
        .prepare_cached(of_this_boot)?
        .execute(params![boot, now(), SWEPT])?;
    let of_others = "DELETE FROM done WHERE name IN (SELECT name FROM
        (SELECT name, boot FROM done WHERE wall <= ?2 ORDER BY wall LIMIT ?3) WHERE boot <> ?1)";
    let at = wall().as_millis() as i64;
    connection
        .prepare_cached(of_others)?
        .execute(params![boot, at, SWEPT])
        .map(drop)
}

fn replaced() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file was replaced by another process",
    )
}

impl Client {
    /// Opens the second file before anybody waits for this client, if it is there.
    pub(crate) fn open_completed(&self, deadline: Moment) -> Result<()> {
        wait_until(deadline);
        self.file
            .with_completed(Wanted::IfThere, |_| Ok(()))
            .map(drop)
    }

    pub(crate) fn complete(
        &mut self,
        claim: &Claim,
        request: &Complete,
        deadline: Moment,
    ) -> Result<Completed> {
        // The second file is made before anybody waits for this client, but not for a hold that has
        // ended.
        let hold = self.read(|connection| self.own.read(connection, claim.id))?;
        match hold.is_some_and(|hold| hold.token == Some(request.token.as_i64())) {
            true => {
                wait_until(deadline);
                self.file.with_completed(Wanted::Made, |_| Ok(()))?;
            }
            false => self.open_completed(deadline)?,
        }
        // The time limit of the transaction begins with it: a new file waits for the disk.
        let deadline = limit(Some(claim.ttl));
        let mut is_recorded = false;
        let answer = self
            .write(deadline, |queues| {
                queues.complete(claim, request, &mut is_recorded)
            })
            .and_then(|answer| answer)
            .and_then(|(answer, mut is_over)| {
                while !is_over {
                    is_over = self.write(deadline, |queues| queues.end_work(claim))?;
                }
                Ok(answer)
            });
        // Whatever failed, the completion may be there.
        let answer = answer.map_err(|e| match is_recorded {
            true => e.with_kind(ErrorKind::Ambiguous),
            false => e,
        })?;
        if let Completed::Done(_) = answer {
            self.watches.forget(claim.id);
            let _ = self.announce_longest();
            let _ = self.file.with_completed(Wanted::IfOpen, |file| {
                file.keep_log_short();
                Ok(())
            });
        }
        Ok(answer)
    }

    fn completion(&mut self, name: &Name) -> Result<Option<Completion>> {
        self.catch_up()?;
        let found = self.file.with_completed(Wanted::IfThere, |file| {
            find(&file.connection, name.as_str()).map_err(|e| failed(&e, &file.path))
        })?;
        let counting = found
            .flatten()
            .and_then(|record| record.counting(self.file.boot()));
        Ok(counting.map(|(_, completion)| completion))
    }

    fn list_completions(
        &mut self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.catch_up()?;
        let boot = self.file.boot();
        let read = |connection: &Connection| -> rusqlite::Result<Vec<_>> {
            let find = records!("WHERE name >= ?1 AND name > ?2 ORDER BY name");
            let mut find = connection.prepare_cached(find)?;
            let after = after.map_or("", Name::as_str);
            let records = find.query_map(params![prefix, after], Record::read)?;
            let ours = |record: &rusqlite::Result<Record>| {
                record
                    .as_ref()
                    .map_or(true, |record| record.name.starts_with(prefix))
            };
            records
                .take_while(ours)
                .filter_map(|record| match record {
                    Ok(record) => {
                        let name = Name::new(&record.name);
                        record.counting(boot).map(|(_, it)| Ok((name, it)))
                    }
                    Err(e) => Some(Err(e)),
                })
                .take(limit)
                .collect()
        };
        let listed = self.file.with_completed(Wanted::IfThere, |file| {
            read(&file.connection).map_err(|e| failed(&e, &file.path))
        })?;
        Ok(listed.unwrap_or_default())
    }

    fn forget(&mut self, name: &Name, token: FencingToken, deadline: Moment) -> Result<bool> {
        // A client that only looks begins no file anew for what is not there.
        let found = self.completion(name)?;
        if found.is_none_or(|found| found.token != token) {
            return Ok(false);
        }
        self.write(deadline, |queues| match queues.forget(name, token) {
            Ok(done) => Ok(Ok(done)),
            Err(e) => queues.fault(e),
        })?
    }
}

impl Queues<'_> {
    /// The completion of this name that has not ended. `is_for`: the claim that asks is granted the
    /// lock on this answer. No client of a former first file completes anything after it.
    fn counting(&mut self, name: &str, wanted: Wanted) -> Result<Option<(ClaimId, Completion)>> {
        let file = self.file;
        let found = file.with_completed(wanted, |second| {
            let of = |e| failed(&e, &second.path);
            let generation = "SELECT generation FROM meta";
            let read = |connection: &Connection| {
                let generation: i64 = connection
                    .prepare_cached(generation)?
                    .query_row([], |row| row.get(0))?;
                Ok((generation, find(connection, name)?))
            };
            let (generation, found) = read(&second.connection).map_err(of)?;
            if generation == file.generation() {
                return Ok(found);
            }
            // A client of that generation may be about to write: this waits for it.
            second.write(|connection| {
                if !file.is_whole() {
                    return Err(replaced());
                }
                let set = "UPDATE meta SET generation = ?1";
                connection.execute(set, [file.generation()]).map_err(of)?;
                find(connection, name).map_err(of)
            })
        })?;
        let found = found.flatten();
        if let Some(found) = &found {
            // Tokens go on above it, also if the first file was lost and the wall clock stepped
            // back.
            self.meta.token = self.meta.token.max(found.completion.token.as_i64());
        }
        Ok(found.and_then(|record| record.counting(file.boot())))
    }

    /// The completion that counts for this claim.
    pub(crate) fn done_for(&mut self, claim: &Claim, wanted: Wanted) -> Result<Option<Completion>> {
        let Some(fire) = claim.once else {
            return Ok(None);
        };
        let found = self.counting(claim.name.as_str(), wanted)?;
        let found = found.map(|(_, completion)| completion);
        Ok(found.filter(|completion| completion.counts_for(fire)))
    }

    /// Ends the place or the hold of a claim whose work is done.
    pub(crate) fn withdraw(&mut self, claim: &Claim) -> rusqlite::Result<()> {
        // A claim that is sent for the first time has no place.
        match self.own.places.contains_key(&claim.id) {
            true => self.release(claim.name.as_str(), claim.id),
            false => Ok(()),
        }
    }

    /// An error of the second file as the answer; or as that of the transaction, which is run again
    /// then, if the first file was replaced.
    pub(crate) fn fault<T>(&self, e: Error) -> rusqlite::Result<Result<T>> {
        match self.file.is_whole() {
            true => Ok(Err(e)),
            false => Err(rusqlite::Error::QueryReturnedNoRows),
        }
    }

    /// Records the completion, and ends the hold. The completion is committed first, in the second
    /// file: `is_recorded` says so whatever becomes of this transaction, which only has the hold. The
    /// flag says whether the hold has ended.
    fn complete(
        &mut self,
        claim: &Claim,
        request: &Complete,
        is_recorded: &mut bool,
    ) -> rusqlite::Result<Result<(Completed, bool)>> {
        let name = claim.name.as_str();
        let fire = claim.once.unwrap_or_default();
        match self.counting(name, Wanted::IfThere) {
            Err(e) => return self.fault(e),
            Ok(Some((of, completion))) if of == claim.id => {
                *is_recorded = true;
                let is_over = self.end_work(claim)?;
                return Ok(Ok((Completed::Done(completion), is_over)));
            }
            Ok(Some((_, completion))) if completion.counts_for(fire) => {
                return Ok(Ok((Completed::NotHeld, true)));
            }
            Ok(_) => {}
        }
        let holds = self.find(claim)?.is_some_and(|hold| {
            // A hold that was given back, and lapses by itself, has no client.
            let lapses = hold.client.fifo < 0;
            hold.token == Some(request.token.as_i64()) && hold.until > self.now && !lapses
        });
        if !holds {
            return Ok(Ok((Completed::NotHeld, true)));
        }
        let completion = match self.record(claim, request, is_recorded) {
            Ok(completion) => completion,
            Err(e) => return self.fault(e),
        };
        let is_over = self.end_work(claim)?;
        Ok(Ok((Completed::Done(completion), is_over)))
    }

    /// Tells waiters that the work of this claim is done, and then ends its hold: none of them is
    /// served. Returns whether that was all.
    fn end_work(&mut self, claim: &Claim) -> rusqlite::Result<bool> {
        let fire = claim.once.unwrap_or_default();
        let is_last = self.tell(claim.name.as_str(), fire)? < TOLD;
        if is_last {
            self.withdraw(claim)?;
        }
        Ok(is_last)
    }

    /// Commits the completion in the second file.
    fn record(
        &self,
        claim: &Claim,
        request: &Complete,
        is_recorded: &mut bool,
    ) -> Result<Completion> {
        let file = self.file;
        let at = wall().as_millis() as i64;
        let (until, end) = end_of(request.keep);
        let row = |second: &CompletedFile| {
            let of = |e| failed(&e, &second.path);
            second.write(|connection| {
                // From here on, who begins the first file anew waits for this transaction before it
                // grants anything to work that is done once.
                if !file.is_whole() {
                    return Err(replaced());
                }
                let set = "UPDATE meta SET generation = ?1 WHERE generation <> ?1";
                connection
                    .prepare_cached(set)
                    .and_then(|mut set| set.execute([file.generation()]))
                    .map_err(of)?;
                let insert = "INSERT OR REPLACE INTO done
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
                let row = params![
                    claim.name.as_str(),
                    Id::from(claim.id),
                    request.token.as_i64(),
                    &*claim.label,
                    at,
                    file.boot(),
                    until,
                    end,
                    claim.once.unwrap_or_default() as i64,
                    request.result.as_deref(),
                    request.is_cut
                ];
                let insert = connection
                    .prepare_cached(insert)
                    .and_then(|mut insert| insert.execute(row));
                insert.map_err(of)?;
                sweep(connection, file.boot()).map_err(of)
            })?;
            Ok(second.is_whole())
        };
        for _ in 0..3 {
            let recorded = file.with_completed(Wanted::Made, row);
            // It may have been, after an error of the commit.
            *is_recorded |= !matches!(&recorded, Err(e) if e.kind() != ErrorKind::Ambiguous);
            // A completion in files that others do not find is none.
            if recorded? == Some(true) {
                let completed = SystemTime::UNIX_EPOCH + Duration::from_millis(at as u64);
                let mut completion = Completion::new(request.token, claim.label.clone(), completed);
                completion.left = match request.keep {
                    Keep::For(keep) => Some(keep),
                    Keep::Forever => None,
                };
                completion.fire = claim.once.unwrap_or_default();
                completion.result = request.result.clone();
                completion.is_cut = request.is_cut;
                return Ok(completion);
            }
        }
        Err(Error::new(
            ErrorKind::Ambiguous,
            "the file of completions is replaced again and again",
        ))
    }

    /// Removes waiters whose work is done by the completion of this fire, and tells their clients
    /// to ask, a limited number at a time. Returns their number.
    fn tell(&mut self, name: &str, fire: u64) -> rusqlite::Result<usize> {
        self.know_fires()?;
        // The numbers are unsigned: a negative one is greater than all others.
        let waiters = "SELECT p.seq, p.claim, s.fifo, s.dev, s.ino
            FROM place p INDEXED BY waiting JOIN session s ON s.id = p.session
            WHERE p.name = ?1 AND p.token IS NULL AND p.once IS NOT NULL
            AND CASE WHEN (p.once < 0) = (?2 < 0) THEN p.once <= ?2 ELSE p.once >= 0 END LIMIT ?3";
        let waiter = |row: &Row<'_>| {
            let address = Address {
                fifo: row.get(2)?,
                dev: row.get(3)?,
                ino: row.get(4)?,
            };
            Ok((row.get(0)?, row.get(1)?, address))
        };
        let found = self
            .tx
            .prepare_cached(waiters)?
            .query_map(params![name, fire as i64, TOLD as i64], waiter)?
            .collect::<rusqlite::Result<Vec<(i64, String, Address)>>>()?;
        for (seq, claim, to) in &found {
            self.execute(REMOVE, params![name, seq])?;
            if let Some(claim) = ClaimId::parse(claim) {
                let to = *to;
                let name = name.to_owned();
                let word = Word::Again(claim);
                self.messages.push(Message { to, name, word });
            }
        }
        Ok(found.len())
    }

    /// Notes in the row of a waiter which fire it waits for.
    pub(crate) fn note_fire(&self, name: &str, seq: i64, fire: u64) -> rusqlite::Result<()> {
        self.know_fires()?;
        let note = "UPDATE place SET once = ?3 WHERE name = ?1 AND seq = ?2";
        self.execute(note, params![name, seq, fire as i64])
            .map(drop)
    }

    /// Gives a file of an earlier build the column of the fires.
    fn know_fires(&self) -> rusqlite::Result<()> {
        match self.tx.prepare_cached("SELECT once FROM place LIMIT 0") {
            Ok(_) => Ok(()),
            Err(_) => self
                .tx
                .execute_batch("ALTER TABLE place ADD COLUMN once INTEGER"),
        }
    }

    fn forget(&mut self, name: &Name, token: FencingToken) -> Result<bool> {
        let name = name.as_str();
        let found = self.counting(name, Wanted::IfThere)?;
        if found.is_none_or(|(_, completion)| completion.token != token) {
            return Ok(false);
        }
        let forget = |second: &CompletedFile| {
            second.write(|connection| {
                let delete = "DELETE FROM done WHERE name = ?1 AND token = ?2";
                connection
                    .execute(delete, params![name, token.as_i64()])
                    .map_err(|e| failed(&e, &second.path))
            })
        };
        let forgotten = self.file.with_completed(Wanted::IfThere, forget)?;
        Ok(forgotten == Some(1))
    }
}

#[async_trait]
impl Completions for Sqlite {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let claim = claim.clone();
        let request = request.clone();
        let limit = limit(Some(claim.ttl));
        self.client
            .ask(move |client| client.complete(&claim, &request, limit))
            .await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let name = name.clone();
        self.client
            .ask(move |client| client.completion(&name))
            .await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let name = name.clone();
        let limit = limit(None);
        self.client
            .ask(move |client| client.forget(&name, token, limit))
            .await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let prefix = prefix.to_owned();
        let after = after.cloned();
        self.client
            .ask(move |client| client.list_completions(&prefix, after.as_ref(), limit))
            .await
    }
}
