//! The queues in one write transaction: which entries hold, which wait, which are admitted, and what is sent for that.

use std::collections::{BTreeSet, HashMap};

use leasehold_core::Contention;
use leasehold_core::seam::{Admission, ClaimId, Mode, admit};
use leasehold_core::support::escape;
use rusqlite::{OptionalExtension, Params, Transaction, params};

use crate::client::fifo::Address;
use crate::client::time::wall;
use crate::entry::{Entry, entries};

/// A write transaction.
pub(crate) struct Queues<'a> {
    pub(crate) tx: &'a Transaction<'a>,
    pub(crate) own: &'a mut Own,
    /// When it began, on CLOCK_BOOTTIME.
    pub(crate) now: i64,
    /// Until when nothing is granted.
    pub(crate) quiet: i64,
    /// The end of a session is not the one that we have written.
    pub(crate) went_back: bool,
    pub(crate) written: Written,
    pub(crate) messages: Vec<Message>,
    /// Names whose holder, or the holder's label, is another.
    pub(crate) changed: BTreeSet<String>,
}

/// What this client has in the file.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) address: Address,
    /// The TTL of each place, and until when it lasts unless it is claimed or renewed again: its session lives on with others.
    pub(crate) last_used: HashMap<ClaimId, (i64, i64)>,
    /// The end that we have written last into the session of each TTL.
    pub(crate) written: HashMap<i64, i64>,
}

/// The ends that one transaction has written into sessions, by TTL.
type Written = Vec<(i64, i64)>;

/// A text for a client's FIFO, and the lock that it is about.
pub(crate) struct Message {
    pub(crate) to: Address,
    pub(crate) name: String,
    pub(crate) text: String,
}

/// The holders of one queue, and its first waiter.
pub(crate) struct Head {
    /// In their order.
    pub(crate) holders: Vec<Entry>,
    /// The first waiter.
    pub(crate) next: Option<Entry>,
}

impl Head {
    pub(crate) fn modes(&self) -> Vec<Mode> {
        self.holders.iter().map(|holder| holder.mode).collect()
    }
}

impl<'a> Queues<'a> {
    pub(crate) fn new(tx: &'a Transaction<'a>, own: &'a mut Own, now: i64, quiet: i64) -> Queues<'a> {
        let (messages, written, changed) = Default::default();
        Queues { tx, own, now, quiet, went_back: false, written, messages, changed }
    }

    /// What to send once it is committed, and which ends of sessions it has written.
    pub(crate) fn done(mut self) -> rusqlite::Result<(Vec<Message>, Written)> {
        for name in self.changed {
            let all = "SELECT fifo, dev, ino FROM observer WHERE name = ?1";
            for to in self.tx.prepare_cached(all)?.query_map([&name], Address::read)? {
                let text = format!("changed {}", escape(&name, is_end_of_line));
                self.messages.push(Message { to: to?, name: name.clone(), text });
            }
        }
        Ok((self.messages, self.written))
    }

    /// The first entries of the queue are admitted: one that is not keeps out all behind it, since each of those has the same
    /// entries before it, and this one.
    pub(crate) fn head(&self, name: &str) -> rusqlite::Result<Head> {
        let mut head = Head { holders: Vec::new(), next: None };
        let mut modes = Vec::new();
        let mut queue = self.tx.prepare_cached(entries!("WHERE p.name = ?1 ORDER BY p.seq"))?;
        for entry in queue.query_map([name], Entry::read)? {
            let entry = entry?;
            if admit(&modes, entry.mode) != Admission::In {
                head.next = Some(entry);
                break;
            }
            modes.push(entry.mode);
            head.holders.push(entry);
        }
        Ok(head)
    }

    /// Removes the dead entries of one queue, and grants to each waiter that is admitted now.
    pub(crate) fn admit_waiters(&mut self, name: &str) -> rusqlite::Result<Head> {
        let dead = "DELETE FROM place INDEXED BY mine
                    WHERE session IN (SELECT id FROM session WHERE until <= ?1) AND name = ?2";
        if self.execute(dead, params![self.now, name])? > 0 {
            self.changed.insert(name.to_owned());
        }
        let mut head = self.head(name)?;
        let may_grant = self.may_grant();
        for holder in head.holders.iter_mut().filter(|holder| may_grant && holder.token.is_none()) {
            let token = self.reserve_tokens(holder.turns)?;
            let since = wall().as_millis() as i64;
            self.execute("UPDATE place SET token = ?2, since = ?3 WHERE seq = ?1", params![holder.seq, token, since])?;
            (holder.token, holder.since) = (Some(token), since);
            let text = format!("granted {}", holder.seq);
            self.messages.push(Message { to: holder.client, name: name.to_owned(), text });
            self.changed.insert(name.to_owned());
        }
        Ok(head)
    }

    /// Not while leases may live in files that these have replaced.
    pub(crate) fn may_grant(&self) -> bool {
        self.now >= self.quiet
    }

    /// Reserves tokens: never below the wall clock, so that they rise also after the file is gone.
    pub(crate) fn reserve_tokens(&self, turns: u32) -> rusqlite::Result<i64> {
        let reserve = "UPDATE meta SET token = max(token + 1, ?1) + ?2 - 1 RETURNING token - ?2 + 1";
        let micros = wall().as_micros() as i64;
        self.tx.prepare_cached(reserve)?.query_row(params![micros, turns], |row| row.get(0))
    }

    pub(crate) fn find(&self, claim: &str) -> rusqlite::Result<Option<Entry>> {
        self.entry(entries!("WHERE p.claim = ?1"), [claim])
    }

    /// The first entry that this query of [`entries`] reads.
    pub(crate) fn entry(&self, query: &str, params: impl Params) -> rusqlite::Result<Option<Entry>> {
        self.tx.prepare_cached(query)?.query_row(params, Entry::read).optional()
    }

    /// Executes a statement; answers how many rows it has changed.
    pub(crate) fn execute(&self, statement: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.tx.prepare_cached(statement)?.execute(params)
    }

    /// Runs a deletion that answers names, and admits the waiters of their queues.
    pub(crate) fn remove(&mut self, deletion: &str, which: impl Params) -> rusqlite::Result<()> {
        let mut deletion = self.tx.prepare_cached(deletion)?;
        let gone = deletion.query_map(which, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (name, held) in gone.collect::<rusqlite::Result<Vec<(String, bool)>>>()? {
            self.admit_waiters(&name)?;
            if held {
                self.changed.insert(name);
            }
        }
        Ok(())
    }

    /// What keeps a claim out.
    pub(crate) fn contention(&self, head: &Head, name: &str, of_mine: i64) -> rusqlite::Result<Contention> {
        let waiters = "SELECT count(*) FROM place WHERE name = ?1 AND token IS NULL";
        let waiters: i64 = self.tx.prepare_cached(waiters)?.query_row([name], |row| row.get(0))?;
        let who = head.holders.first().map_or_else(Contention::unknown, |first| Contention::from(&first.shown()));
        Ok(who.waiters((waiters - of_mine).max(0) as usize))
    }
}

/// What is escaped in a name, so that it is one line of a FIFO.
pub(crate) fn is_end_of_line(c: char) -> bool {
    c == '\n'
}
