//! `release` and `release_after`, and what clients that have ended left behind.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use rusqlite::params;

use crate::claim::queue::{Message, Queues};
use crate::client::time::nanos;
use crate::client::worker::Client;
use crate::entry::Entry;

impl Client {
    pub(crate) fn release(&mut self, claim: ClaimId, deadline: Moment) -> Result<()> {
        self.watches.forget(claim);
        self.write(deadline, |queues| queues.release(claim))?;
        // With many leases the longest is looked for when they are renewed.
        if self.own.last_used.len() < 16 { self.announce_longest() } else { Ok(()) }
    }

    pub(crate) fn release_after(&mut self, claim: &Claim, rest: Duration, deadline: Moment) -> Result<()> {
        self.write(deadline, |queues| queues.release_after(claim, nanos(rest)))
    }
}

impl Queues<'_> {
    /// Leaves no trace of this claim, and admits the next waiter.
    pub(crate) fn release(&mut self, claim: ClaimId) -> rusqlite::Result<()> {
        self.own.last_used.remove(&claim);
        self.remove("DELETE FROM place WHERE claim = ?1 RETURNING name, token IS NOT NULL", [claim.to_string()])
    }

    /// Gives a hold a session of its own, which ends that long from now, and is neither renewed nor ended with us.
    pub(crate) fn release_after(&mut self, claim: &Claim, rest: i64) -> rusqlite::Result<()> {
        let hold = self.find(&claim.id.to_string())?.filter(|hold| hold.token.is_some() && hold.until > self.now);
        self.own.last_used.remove(&claim.id);
        let Some(Entry { seq, .. }) = hold else { return Ok(()) };
        if self.execute("UPDATE place SET session = -seq WHERE seq = ?1 AND session > 0", [seq])? == 0 {
            return Ok(()); // it lapses already
        }
        let insert = "INSERT INTO session (id, fifo, dev, ino, pid, ttl, until) VALUES (-?1, -?1, 0, 0, 0, ?2, ?3)";
        self.execute(insert, params![seq, rest, self.now.saturating_add(rest)])?;
        // The next waiter waits for another end than it knew.
        if let Some(next) = self.head(claim.name.as_str())?.next {
            let (name, text) = (claim.name.to_string(), format!("again {}", next.claim));
            self.messages.push(Message { to: next.client, name, text });
        }
        Ok(())
    }

    /// Removes holds that were released after a while, and have ended.
    pub(crate) fn remove_ended(&mut self) -> rusqlite::Result<()> {
        let ended = "DELETE FROM place WHERE session IN (SELECT id FROM session WHERE id < 0 AND until <= ?1)
                      RETURNING name, token IS NOT NULL";
        self.remove(ended, [self.now])
    }

    /// The process behind this FIFO has ended: so have its sessions, and it observes nothing.
    pub(crate) fn end_sessions(&self, fifo: i64) -> rusqlite::Result<()> {
        self.execute("UPDATE session SET until = 0 WHERE fifo = ?1 AND until > 0", [fifo])?;
        self.execute("DELETE FROM observer WHERE fifo = ?1", [fifo]).map(drop)
    }

    /// Removes what is left of ended clients, or of ourselves, a bounded part of it at a time; answers whether it was all.
    pub(crate) fn remove_client(&mut self, fifo: i64) -> rusqlite::Result<bool> {
        const PART: i64 = 500;
        self.end_sessions(fifo)?;
        let part = "DELETE FROM place WHERE seq IN (SELECT p.seq FROM place p JOIN session s ON s.id = p.session
                    WHERE s.fifo = ?1 LIMIT ?2) RETURNING name, token IS NOT NULL";
        self.remove(part, params![fifo, PART])?;
        let rest = "SELECT EXISTS (SELECT 1 FROM place p JOIN session s ON s.id = p.session WHERE s.fifo = ?1)";
        if self.tx.prepare_cached(rest)?.query_row([fifo], |row| row.get(0))? {
            return Ok(false);
        }
        self.execute("DELETE FROM session WHERE fifo = ?1", [fifo])?;
        Ok(true)
    }
}
