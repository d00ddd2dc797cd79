//! The queue of one lock, without a clock of its own: `claim`, and which waiters are admitted.

use std::time::Duration;

use leasehold_core::seam::{
    Admission, Claim, ClaimId, Claimed, Mode, Moment, WaitPolicy, Waiting, admit, same_permits,
};
use leasehold_core::{Contention, Result};

use crate::client::Link;
use crate::entry::{Entry, Tokens};

/// Holders and waiters of one lock, in the order in which they came.
#[derive(Default)]
pub(crate) struct Queue(pub(crate) Vec<Entry>);

impl Queue {
    /// Removes the dead, and grants to each waiter that is admitted now.
    pub(crate) fn admit_waiters(&mut self, now: Moment, tokens: &mut Tokens) {
        self.0.retain(|entry| entry.deadline() > now);
        let modes = self.modes();
        for (i, entry) in self.0.iter_mut().enumerate().filter(|(_, entry)| !entry.holds()) {
            if admit(&modes[..i], entry.claim.mode) == Admission::In {
                entry.admit(tokens, now);
            }
        }
    }

    pub(crate) fn claim(&mut self, claim: &Claim, link: &Link, now: Moment, tokens: &mut Tokens) -> Result<Claimed> {
        let known = self.0.iter().position(|entry| entry.claim.id == claim.id);
        let at = known.unwrap_or(self.0.len());
        if known.is_none() {
            let modes = self.modes();
            same_permits(&modes, claim.mode)?;
            if claim.policy == WaitPolicy::Try && admit(&modes, claim.mode) != Admission::In {
                return Ok(Claimed::Busy(self.contention(at, now)));
            }
            self.0.push(Entry::new(claim, link, now));
            self.admit_waiters(now, tokens);
        }
        let entry = &mut self.0[at];
        entry.extend(now);
        entry.claim.label = claim.label.clone();
        if let Some(grant) = entry.grant() {
            if claim.mode == Mode::Shared && entry.claim.mode == Mode::Exclusive {
                entry.claim.mode = Mode::Shared;
            }
            return Ok(Claimed::Granted(grant));
        }
        let place = entry.place();
        // When a holder's lease ends, the first client that asks admits the waiters.
        let free = self.0[..at].iter().filter(|entry| entry.holds()).map(Entry::deadline).min();
        let retry_after = free.map_or(claim.ttl, |at| at.since(now)) + Duration::from_millis(1);
        Ok(Claimed::Waiting(Waiting::new(place, self.contention(at, now)).retry_after(retry_after)))
    }

    /// Which claim is in the queue before this one, if it is not empty.
    pub(crate) fn blocked_by(&self, id: ClaimId, now: Moment) -> Option<Contention> {
        self.0.first().filter(|first| first.claim.id != id).map(|_| self.contention(self.0.len(), now))
    }

    /// Which holder is in the way of the entry at `at`.
    fn contention(&self, at: usize, now: Moment) -> Contention {
        let waiting = self.0.iter().enumerate().filter(|(i, entry)| *i != at && !entry.holds()).count();
        let first = self.0.iter().find(|entry| entry.holds());
        let by = |first: &Entry| Contention::from(&first.shown()).held_for(now.since(first.began));
        first.map_or_else(Contention::unknown, by).waiters(waiting)
    }

    fn modes(&self) -> Vec<Mode> {
        self.0.iter().map(|entry| entry.claim.mode).collect()
    }
}
