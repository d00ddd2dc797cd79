//! `release` and `release_after`, and the removal of rows that ended clients have left.

use std::time::Duration;

use leasehold_core::backend::{Claim, ClaimId, Moment};
use leasehold_core::{Name, Result};
use rusqlite::params;

use crate::claim::queue::{Message, Queues, gone};
use crate::client::time::nanos;
use crate::client::words::Word;
use crate::client::worker::Client;
use crate::entry::{Entry, Id};

/// The number of places that one transaction removes at most.
const PART: usize = 500;

impl Client {
    pub(crate) fn release(&mut self, claim: &Claim, deadline: Moment) -> Result<()> {
        self.watches.forget(claim.id);
        self.write(deadline, |queues| {
            queues.release(claim.name.as_str(), claim.id)
        })?;
        // With many leases, the next renewal looks for the longest.
        if self.own.places.len() < 16 {
            self.announce_longest()
        } else {
            Ok(())
        }
    }

    pub(crate) fn release_after(
        &mut self,
        claim: &Claim,
        rest: Duration,
        deadline: Moment,
    ) -> Result<()> {
        self.write(deadline, |queues| queues.release_after(claim, nanos(rest)))
    }
}

impl Queues<'_> {
    /// Removes all rows of this claim, and admits the next waiter.
    pub(crate) fn release(&mut self, name: &str, claim: ClaimId) -> rusqlite::Result<()> {
        let Some(seq) = self.own.places.get(&claim).map(|mine| mine.seq) else {
            let search = gone!("DELETE FROM place WHERE name = ?1 AND claim = ?2");
            return self
                .remove(search, params![name, Id::from(claim)])
                .map(drop);
        };
        self.released.push((claim, seq));
        if self.give_back(name, claim, seq)? {
            return Ok(());
        }
        self.remove_known(name, seq, claim)
    }

    /// Gives a hold a session of its own, which ends after `rest`. This client neither renews it
    /// nor ends it with its own sessions.
    pub(crate) fn release_after(&mut self, claim: &Claim, rest: i64) -> rusqlite::Result<()> {
        let hold = self
            .find(claim)?
            .filter(|hold| hold.token.is_some() && hold.until > self.now);
        let Some(Entry { seq, .. }) = hold else {
            return Ok(());
        };
        let let_lapse =
            "UPDATE place SET session = -seq WHERE name = ?1 AND seq = ?2 AND session > 0";
        if self.execute(let_lapse, params![claim.name.as_str(), seq])? == 0 {
            return Ok(()); // it lapses already
        }
        self.released.push((claim.id, seq));
        let insert = "INSERT INTO session (id, fifo, dev, ino, pid, ttl, until) VALUES (-?1, -?1, 0, 0, 0, ?2, ?3)";
        self.execute(insert, params![seq, rest, self.now.saturating_add(rest)])?;
        // The next waiter has to wait for another end than it was told.
        if let Some(next) = self.head(claim.name.as_str())?.next {
            let name = claim.name.to_string();
            let word = Word::Again(next.claim);
            self.messages.push(Message {
                to: next.client,
                name,
                word,
            });
        }
        Ok(())
    }

    /// Removes holds of `release_after` that have ended.
    pub(crate) fn remove_ended(&mut self) -> rusqlite::Result<()> {
        let ended = gone!(
            "DELETE FROM place WHERE session IN (SELECT id FROM session WHERE id < 0 AND until <= ?1)"
        );
        self.remove(ended, [self.now]).map(drop)
    }

    /// Ends the sessions of a process whose FIFO has ended, and removes its observers.
    pub(crate) fn end_sessions(&self, fifo: i64) -> rusqlite::Result<()> {
        self.execute(
            "UPDATE session SET until = 0 WHERE fifo = ?1 AND until > 0",
            [fifo],
        )?;
        self.execute("DELETE FROM observer WHERE fifo = ?1", [fifo])
            .map(drop)
    }

    /// Removes the rows of a client that has ended, a limited number at a time. Returns whether all
    /// are removed.
    pub(crate) fn remove_client(&mut self, fifo: i64) -> rusqlite::Result<bool> {
        self.end_sessions(fifo)?;
        let part = gone!(
            "DELETE FROM place WHERE (name, seq) IN (SELECT p.name, p.seq FROM place p
             JOIN session s ON s.id = p.session WHERE s.fifo = ?1 LIMIT ?2)"
        );
        if self.remove(part, params![fifo, PART as i64])? == PART {
            return Ok(false);
        }
        self.execute("DELETE FROM session WHERE fifo = ?1", [fifo])?;
        Ok(true)
    }

    /// Removes the rows of this client, a limited number at a time, without a search through the
    /// whole table. Returns whether all are removed.
    pub(crate) fn leave(&mut self) -> rusqlite::Result<bool> {
        let fifo = self.own.address.fifo;
        self.end_sessions(fifo)?;
        let part = self.own.places.iter().take(PART);
        let part: Vec<(ClaimId, Name)> = part.map(|(id, mine)| (*id, mine.name.clone())).collect();
        for (claim, name) in &part {
            self.release(name.as_str(), *claim)?;
        }
        if part.len() == PART {
            return Ok(false);
        }
        self.execute("DELETE FROM session WHERE fifo = ?1", [fifo])?;
        Ok(true)
    }
}
