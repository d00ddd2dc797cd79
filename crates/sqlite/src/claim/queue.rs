//! The queues in one write transaction: the entries that hold or wait, the admission of waiters,
//! and the messages about that.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use leasehold_core::backend::{Admission, Claim, ClaimId, Mode, admit};
use leasehold_core::{Contention, Name};
use rusqlite::{Connection, OptionalExtension, Params, params};

use crate::client::fifo::Address;
use crate::client::file::File;
use crate::client::generation::Meta;
use crate::client::time::nanos;
use crate::client::tokens::Tokens;
use crate::client::words::Word;
use crate::entry::{Entry, Id, entries};

/// The number of other waiters up to which they are counted for a claim that itself waits.
const COUNTED: i64 = 64;

/// Removes the place of this number.
pub(crate) const REMOVE: &str = "DELETE FROM place WHERE name = ?1 AND seq = ?2";
/// Selects, of a place that is there, whether it is held and whether by a reader, as [`gone`]
/// returns it.
const KNOWN: &str = "SELECT token IS NOT NULL, token IS NOT NULL AND mode = 'shared' FROM place
    WHERE name = ?1 AND seq = ?2 AND claim = ?3";
const HAS_ONE_ENDED: &str = "SELECT EXISTS (SELECT 1 FROM session WHERE until <= ?1)";

/// A write transaction.
pub(crate) struct Queues<'a> {
    pub(crate) file: &'a File,
    pub(crate) tx: &'a Connection,
    pub(crate) own: &'a mut OwnPlaces,
    /// The begin of the transaction on CLOCK_BOOTTIME, in nanoseconds.
    pub(crate) now: i64,
    /// The begin of the transaction on the wall clock.
    pub(crate) wall: Duration,
    pub(crate) meta: Meta,
    /// The end of a session is earlier than the one that this client wrote last.
    pub(crate) went_back: bool,
    pub(crate) written: Vec<(i64, Session)>,
    /// Places of this client that are new in the transaction, and will be undone with it.
    pub(crate) inserted: Vec<ClaimId>,
    /// Places of this client that are gone once the transaction is committed.
    pub(crate) released: Vec<(ClaimId, i64)>,
    pub(crate) messages: Vec<Message>,
    /// Names whose holder, or whose holder's label, has changed.
    pub(crate) changed: BTreeSet<String>,
}

/// The rows of this client in the file, as far as it knows.
#[derive(Default)]
pub(crate) struct OwnPlaces {
    pub(crate) address: Address,
    /// Each place that this client has in the file, and some that it may have had.
    pub(crate) places: HashMap<ClaimId, OwnPlace>,
    /// The session of each TTL, as this client wrote it last.
    pub(crate) sessions: HashMap<i64, Session>,
}

impl OwnPlaces {
    /// Reads this client's place of this claim, if the client still has it.
    pub(crate) fn read(
        &self,
        connection: &Connection,
        claim: ClaimId,
    ) -> rusqlite::Result<Option<Entry>> {
        let Some(mine) = self.places.get(&claim) else {
            return Ok(None);
        };
        let find = entries!("WHERE p.name = ?1 AND p.seq = ?2 AND p.claim = ?3 AND s.fifo = ?4");
        let place = params![
            mine.name.as_str(),
            mine.seq,
            Id::from(claim),
            self.address.fifo
        ];
        connection
            .prepare_cached(find)?
            .query_row(place, Entry::read)
            .optional()
    }
}

/// One place of this client.
pub(crate) struct OwnPlace {
    pub(crate) name: Name,
    pub(crate) seq: i64,
    pub(crate) ttl: i64,
    /// The end of the place, unless it is claimed or renewed again. Its session may last longer for
    /// the sake of other places.
    pub(crate) until: i64,
}

/// The lease that a client has for all its places of one TTL.
#[derive(Clone, Copy)]
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) until: i64,
}

/// A word for a client's FIFO, and the lock that it is about.
pub(crate) struct Message {
    pub(crate) to: Address,
    pub(crate) name: String,
    pub(crate) word: Word,
}

/// Makes a deletion return the name, whether the place was held, and whether by a reader, for
/// [`Queues::remove`]. Such rows go through a temporary table, which costs as much as the rest of a
/// release. A place whose number is known is therefore [read](Queues::remove_known) first.
macro_rules! gone {
    ($deletion:literal) => {
        concat!(
            $deletion,
            " RETURNING name, token IS NOT NULL, token IS NOT NULL AND mode = 'shared'"
        )
    };
}
pub(crate) use gone;

/// The holders of one queue, and its first waiter.
#[derive(Default)]
pub(crate) struct Head {
    /// The holders in the order of the queue.
    pub(crate) holders: Vec<Entry>,
    /// The first waiter.
    pub(crate) next: Option<Entry>,
    /// The numbers of the entries before the first waiter that have ended.
    dead: Vec<i64>,
}

impl Head {
    pub(crate) fn modes(&self) -> Vec<Mode> {
        self.holders.iter().map(|holder| holder.mode).collect()
    }
}

impl<'a> Queues<'a> {
    /// `began` is the begin of the transaction on CLOCK_BOOTTIME and on the wall clock.
    pub(crate) fn new(
        file: &'a File,
        own: &'a mut OwnPlaces,
        began: (i64, Duration),
        meta: Meta,
    ) -> Queues<'a> {
        let ((now, wall), (messages, written, inserted, released, changed)) =
            (began, Default::default());
        Queues {
            file,
            tx: &file.connection,
            own,
            now,
            wall,
            meta,
            went_back: false,
            written,
            inserted,
            released,
            messages,
            changed,
        }
    }

    /// Adds messages to the observers of the names that have changed.
    pub(crate) fn notify_observers(&mut self) -> rusqlite::Result<()> {
        for name in std::mem::take(&mut self.changed) {
            let all = "SELECT fifo, dev, ino FROM observer WHERE name = ?1";
            for to in self
                .tx
                .prepare_cached(all)?
                .query_map([&name], Address::read)?
            {
                let word = Word::Changed(Name::new(&name));
                self.messages.push(Message {
                    to: to?,
                    name: name.clone(),
                    word,
                });
            }
        }
        Ok(())
    }

    /// Reads the first entries of the queue, up to the first one that is not admitted. That one
    /// keeps out all behind it, since each of those has the same entries before it, and this one.
    /// Entries that have ended are left out.
    pub(crate) fn head(&self, name: &str) -> rusqlite::Result<Head> {
        let mut head = Head {
            holders: Vec::new(),
            next: None,
            dead: Vec::new(),
        };
        let mut modes = Vec::new();
        let mut queue = self
            .tx
            .prepare_cached(entries!("WHERE p.name = ?1 ORDER BY p.seq"))?;
        for entry in queue.query_map([name], Entry::read)? {
            let entry = entry?;
            if entry.until <= self.now {
                head.dead.push(entry.seq);
                continue;
            }
            if admit(&modes, entry.mode) != Admission::In {
                head.next = Some(entry);
                break;
            }
            modes.push(entry.mode);
            head.holders.push(entry);
        }
        Ok(head)
    }

    /// Removes the ended entries at the head of a queue, and grants the lock to each waiter that is
    /// admitted now.
    pub(crate) fn admit_waiters(&mut self, name: &str) -> rusqlite::Result<Head> {
        self.remove_ended_waiters(name)?;
        let mut head = self.head(name)?;
        for dead in head.dead.drain(..) {
            self.execute(REMOVE, params![name, dead])?;
            self.changed.insert(name.to_owned());
        }
        let may_grant = self.may_grant();
        for holder in head
            .holders
            .iter_mut()
            .filter(|holder| may_grant && holder.token.is_none())
        {
            let tokens = self.reserve_tokens(holder.turns, holder.floor)?;
            let since = self.since();
            let grant =
                "UPDATE place SET token = ?3, turns = ?4, since = ?5 WHERE name = ?1 AND seq = ?2";
            self.execute(
                grant,
                params![name, holder.seq, tokens.first, tokens.count, since],
            )?;
            (holder.token, holder.turns, holder.since) = (Some(tokens.first), tokens.count, since);
            let word = Word::Granted(holder.claim);
            self.messages.push(Message {
                to: holder.client,
                name: name.to_owned(),
                word,
            });
            self.changed.insert(name.to_owned());
        }
        Ok(head)
    }

    /// Removes the waiters of a queue whose sessions have ended. It first looks for an ended
    /// session, and mostly finds none: the deletion makes two temporary tables, and is costly even
    /// if it finds nothing.
    fn remove_ended_waiters(&self, name: &str) -> rusqlite::Result<()> {
        if self
            .tx
            .prepare_cached(HAS_ONE_ENDED)?
            .query_row([self.now], |row| row.get(0))?
        {
            let waiters = "DELETE FROM place INDEXED BY waiting
                           WHERE name = ?2 AND session IN (SELECT id FROM session WHERE until <= ?1) AND token IS NULL";
            self.execute(waiters, params![self.now, name])?;
        }
        Ok(())
    }

    /// Returns whether anything may be granted: not while leases may live in files that these files
    /// have replaced.
    pub(crate) fn may_grant(&self) -> bool {
        self.now >= self.meta.quiet
    }

    /// The tokens for a grant that asks for this number of turns.
    pub(crate) fn next_tokens(&self, turns: u32, floor: i64) -> Tokens {
        Tokens::after(self.meta.token, floor, self.wall, turns)
    }

    pub(crate) fn reserve_tokens(&mut self, turns: u32, floor: i64) -> rusqlite::Result<Tokens> {
        let tokens = self.next_tokens(turns, floor);
        self.raise_all(tokens.last())?;
        Ok(tokens)
    }

    fn since(&self) -> i64 {
        self.wall.as_millis() as i64
    }

    /// The place of this claim. The queue is searched only for a claim that this client does not
    /// know.
    pub(crate) fn find(&self, claim: &Claim) -> rusqlite::Result<Option<Entry>> {
        if self.own.places.contains_key(&claim.id) {
            return self.own.read(self.tx, claim.id);
        }
        let search = entries!("WHERE p.name = ?1 AND p.claim = ?2");
        self.entry(search, params![claim.name.as_str(), Id::from(claim.id)])
    }

    /// Writes a new place: a hold with these tokens, or a waiter, which has the first of them only
    /// as its number.
    pub(crate) fn insert(
        &mut self,
        claim: &Claim,
        session: i64,
        tokens: Tokens,
        granted: bool,
    ) -> rusqlite::Result<()> {
        let insert = "INSERT INTO place (name, seq, claim, session, mode, n, permits, turns, token, label, since)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let name = claim.name.as_str();
        let id = Id::from(claim.id);
        let ttl = nanos(claim.ttl);
        let ((mode, n, permits), seq, since) = (claim.mode.parts(), tokens.first, self.since());
        let (turns, token) = if granted {
            (tokens.count, Some(seq))
        } else {
            (claim.turns(), None)
        };
        // Recorded before the place is written: a place that the client does not know of would
        // outlive its claim.
        let mine = OwnPlace {
            name: claim.name.clone(),
            seq,
            ttl,
            until: self.now.saturating_add(ttl),
        };
        if self.own.places.insert(claim.id, mine).is_none() && self.went_back {
            self.inserted.push(claim.id);
        }
        let row = params![
            name,
            seq,
            id,
            session,
            mode,
            n,
            permits,
            turns,
            token,
            &*claim.label,
            since
        ];
        self.execute(insert, row)?;
        match claim.once.filter(|_| !granted) {
            Some(fire) => self.note_fire(name, seq, fire),
            None => Ok(()),
        }
    }

    /// The first entry that a query of [`entries`] reads.
    pub(crate) fn entry(
        &self,
        query: &str,
        params: impl Params,
    ) -> rusqlite::Result<Option<Entry>> {
        self.tx
            .prepare_cached(query)?
            .query_row(params, Entry::read)
            .optional()
    }

    /// Executes a statement. Returns the number of rows that it has changed.
    pub(crate) fn execute(&self, statement: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.tx.prepare_cached(statement)?.execute(params)
    }

    /// Runs a deletion that returns [`gone`], and admits the waiters of those queues. Returns the
    /// number of places that it has deleted.
    pub(crate) fn remove(&mut self, deletion: &str, which: impl Params) -> rusqlite::Result<usize> {
        let mut deletion = self.tx.prepare_cached(deletion)?;
        let gone = deletion.query_map(which, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let gone = gone.collect::<rusqlite::Result<Vec<(String, bool, bool)>>>()?;
        let removed = gone.len();
        gone.into_iter()
            .try_for_each(|(name, held, shared)| self.removed(name, held, shared))?;
        Ok(removed)
    }

    /// Removes one place whose number is known, and admits the waiters of its queue.
    pub(crate) fn remove_known(
        &mut self,
        name: &str,
        seq: i64,
        claim: ClaimId,
    ) -> rusqlite::Result<()> {
        let known = params![name, seq, Id::from(claim)];
        let known = self
            .tx
            .prepare_cached(KNOWN)?
            .query_row(known, |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((held, shared)) = known.optional()? else {
            return Ok(());
        };
        self.execute(REMOVE, params![name, seq])?;
        self.removed(name.to_owned(), held, shared)
    }

    /// Admits the waiters of a queue after a place was removed from it.
    fn removed(&mut self, name: String, held: bool, shared: bool) -> rusqlite::Result<()> {
        if !(shared && self.is_shared_on(&name)?) {
            self.admit_waiters(&name)?;
        }
        if held {
            self.changed.insert(name);
        }
        Ok(())
    }

    /// Returns whether readers hold this lock, without reading all of them. A reader that leaves
    /// then lets in nobody: the waiters do not fit beside the readers that stay.
    fn is_shared_on(&self, name: &str) -> rusqlite::Result<bool> {
        let first = self.entry(entries!("WHERE p.name = ?1 ORDER BY p.seq LIMIT 1"), [name])?;
        Ok(first.is_some_and(|first| {
            first.until > self.now && first.token.is_some() && first.mode == Mode::Shared
        }))
    }

    /// Returns whether one more reader may join at once: readers hold the lock, and nobody waits.
    pub(crate) fn admits_a_reader(&self, name: &str) -> rusqlite::Result<bool> {
        let waits = "SELECT EXISTS (SELECT 1 FROM place INDEXED BY waiting WHERE name = ?1 AND token IS NULL)";
        let waits: bool = self
            .tx
            .prepare_cached(waits)?
            .query_row([name], |row| row.get(0))?;
        Ok(!waits && self.is_shared_on(name)?)
    }

    /// The holder that keeps a claim out, and the number of waiters. For a claim that itself waits,
    /// the waiters are counted only up to a limit: the count would cost more with each that joins.
    pub(crate) fn contention(
        &self,
        head: &Head,
        name: &str,
        is_waiting: bool,
    ) -> rusqlite::Result<Contention> {
        let waiters = "SELECT count(*) FROM
                       (SELECT 1 FROM place INDEXED BY waiting WHERE name = ?1 AND token IS NULL LIMIT ?2)";
        let (own, limit) = if is_waiting {
            (1, COUNTED + 1)
        } else {
            (0, i64::MAX)
        };
        let waiters: i64 = self
            .tx
            .prepare_cached(waiters)?
            .query_row(params![name, limit], |row| row.get(0))?;
        let who = head
            .holders
            .first()
            .map_or_else(Contention::unknown, |first| {
                Contention::from(&first.shown())
            });
        Ok(if waiters < limit {
            who.waiters((waiters - own).max(0) as usize)
        } else {
            who
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::free::{DRAW, GIVE_BACK};

    #[test]
    fn what_each_hand_over_executes_makes_no_table_of_its_own() {
        let file = Connection::open_in_memory().unwrap();
        file.execute_batch(include_str!("../schema.sql")).unwrap();
        let steps = |statement: &str| {
            let mut explain = file.prepare(&format!("EXPLAIN {statement}")).unwrap();
            let steps = explain
                .raw_query()
                .mapped(|row| row.get(1))
                .collect::<rusqlite::Result<Vec<String>>>();
            steps.unwrap()
        };
        let first = entries!("WHERE p.name = ?1 ORDER BY p.seq");
        for statement in [REMOVE, KNOWN, HAS_ONE_ENDED, DRAW, GIVE_BACK, first] {
            assert!(
                !steps(statement).contains(&"OpenEphemeral".to_owned()),
                "{statement}"
            );
        }
        let answers = gone!("DELETE FROM place WHERE name = ?1 AND seq = ?2");
        assert!(
            steps(answers).contains(&"OpenEphemeral".to_owned()),
            "the name of that step is another one"
        );
    }
}
