//! Tokens that are raised: of a place by its claim's floor, and of all names.

use leasehold_core::FencingToken;
use leasehold_core::seam::{Claim, Mode};
use rusqlite::params;

use crate::claim::queue::Queues;
use crate::entry::Entry;

/// The least token that a claim may be granted, or 0.
pub(crate) fn floor_of(claim: &Claim) -> i64 {
    claim.floor.map_or(0, FencingToken::as_i64)
}

impl Queues<'_> {
    /// From now on all tokens are greater than this one.
    pub(crate) fn raise_all(&mut self, last: i64) -> rusqlite::Result<()> {
        if last > self.meta.token {
            self.execute("UPDATE meta SET token = ?1", [last])?;
            self.meta.token = last;
        }
        Ok(())
    }

    /// What this claim was asked for with its floor becomes true of its place: a waiter keeps it, a hold has that token.
    pub(crate) fn raise(&mut self, mine: &mut Entry, claim: &Claim) -> rusqlite::Result<()> {
        let (floor, name) = (floor_of(claim), claim.name.as_str());
        match mine.token {
            None if floor > mine.floor => {
                mine.floor = floor;
                let keep = "UPDATE place SET floor = ?3 WHERE name = ?1 AND seq = ?2";
                self.execute(keep, params![name, mine.seq, floor])?;
            }
            Some(token) if floor > token => {
                let turns = i64::from(mine.turns);
                // Nobody was granted the lock since an exclusive one was. Others each have a token of their own.
                let is_alone = mine.mode == Mode::Exclusive;
                let raised = if is_alone { floor } else { floor.max(self.meta.token.saturating_add(1)) };
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
