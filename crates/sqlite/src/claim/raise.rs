//! Raises tokens: that of a place to its claim's floor, and those of all names.

use leasehold_core::FencingToken;
use leasehold_core::backend::{Claim, Mode};
use rusqlite::params;

use crate::claim::queue::Queues;
use crate::entry::Entry;

/// The least token that a claim may be granted, or 0.
pub(crate) fn floor_of(claim: &Claim) -> i64 {
    claim.floor.map_or(0, FencingToken::as_i64)
}

impl Queues<'_> {
    /// Makes all later tokens greater than this one.
    pub(crate) fn raise_all(&mut self, last: i64) -> rusqlite::Result<()> {
        if last > self.meta.token {
            self.execute("UPDATE meta SET token = ?1", [last])?;
            self.meta.token = last;
        }
        Ok(())
    }

    /// Applies a claim's floor to its place: a waiter keeps the floor, and a hold gets a token of
    /// at least the floor.
    pub(crate) fn raise(&mut self, mine: &mut Entry, claim: &Claim) -> rusqlite::Result<()> {
        let floor = floor_of(claim);
        let name = claim.name.as_str();
        match mine.token {
            None if floor > mine.floor => {
                mine.floor = floor;
                let keep = "UPDATE place SET floor = ?3 WHERE name = ?1 AND seq = ?2";
                self.execute(keep, params![name, mine.seq, floor])?;
            }
            Some(token) if floor > token => {
                let turns = i64::from(mine.turns);
                // An exclusive hold gets the floor itself, because nobody was granted the lock
                // after it. Other holds each need a token of their own.
                let is_alone = mine.mode == Mode::Exclusive;
                let raised = if is_alone {
                    floor
                } else {
                    floor.max(self.meta.token.saturating_add(1))
                };
                self.raise_all(raised.saturating_add(turns - 1))?;
                let set = "UPDATE place SET token = ?3 WHERE name = ?1 AND seq = ?2";
                self.execute(set, params![name, mine.seq, raised])?;
                mine.token = Some(raised);
                self.changed.insert(name.to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}
