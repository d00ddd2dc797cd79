//! The queue of one lock, without a clock of its own: `claim`, and which waiters are admitted.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::backend::{
    Admission, Claim, ClaimId, Claimed, Mode, Moment, WaitPolicy, Waiting, admit, holding,
    same_permits,
};
use leasehold_core::{Contention, Result};

use crate::client::Link;
use crate::entry::{Entry, RAISES, Tokens};

/// Holders and waiters of one lock, in the order in which they came: those that hold are its first ones.
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    /// No lease in it ends before this instant, if that is known.
    lives_until: Option<Moment>,
}

impl Default for Queue {
    fn default() -> Queue {
        // Most locks have one holder and no waiter.
        Queue {
            entries: VecDeque::with_capacity(1),
            lives_until: None,
        }
    }
}

impl Queue {
    /// Removes the dead, and grants to each waiter that is admitted now. Its client is notified, unless its own request asks.
    pub(crate) fn admit_waiters(
        &mut self,
        now: Moment,
        tokens: &mut Tokens,
        asking: Option<ClaimId>,
    ) {
        if self.lives_until.is_none_or(|until| until <= now) {
            self.entries.retain(|entry| entry.deadline() > now);
            self.lives_until = self.entries.iter().map(Entry::deadline).min();
        }
        let holders = holding(self.modes());
        for entry in self
            .entries
            .iter_mut()
            .take(holders)
            .filter(|entry| !entry.holds())
        {
            entry.admit(tokens, now);
            if asking != Some(entry.claim.id)
                && let Some(grant) = entry.grant()
            {
                entry
                    .link
                    .notify(|notifier| notifier.granted(entry.claim.id, grant));
            }
        }
    }

    /// A lease in it ends then.
    pub(crate) fn ends_at(&mut self, at: Moment) {
        self.lives_until = self.lives_until.map(|until| until.min(at));
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        link: &Link,
        now: Moment,
        tokens: &mut Tokens,
    ) -> Result<Claimed> {
        RAISES.check(claim.floor)?;
        let known = self
            .entries
            .iter()
            .position(|entry| entry.claim.id == claim.id);
        let at = known.unwrap_or(self.entries.len());
        if known.is_none() {
            same_permits(self.modes(), claim.mode)?;
            if claim.policy == WaitPolicy::Try && !self.is_admitted(claim.mode) {
                return Ok(Claimed::Busy(self.contention(at, now)));
            }
            let entry = Entry::new(claim, link, now);
            self.ends_at(entry.deadline());
            self.entries.push_back(entry);
            self.admit_waiters(now, tokens, Some(claim.id));
        }
        let entry = &mut self.entries[at];
        entry.extend(now);
        entry.raise(claim.floor, tokens);
        entry.claim.label = claim.label.clone();
        if let Some(grant) = entry.grant() {
            if claim.mode == Mode::Shared && entry.claim.mode == Mode::Exclusive {
                entry.claim.mode = Mode::Shared;
            }
            return Ok(Claimed::Granted(grant));
        }
        // When a holder's lease ends, the first client that asks admits the waiters.
        let free = self.holders().map(Entry::deadline).min();
        let retry_after = free.map_or(claim.ttl, |at| at.since(now)) + Duration::from_millis(1);
        let who = self.contention(at, now);
        Ok(Claimed::Waiting(
            Waiting::new(link.place().clone(), who).retry_after(retry_after),
        ))
    }

    /// Which claim is in the queue before this one, if it is not empty.
    pub(crate) fn blocked_by(&self, id: ClaimId, now: Moment) -> Option<Contention> {
        self.entries
            .front()
            .filter(|first| first.claim.id != id)
            .map(|_| self.contention(self.entries.len(), now))
    }

    /// Those that hold.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take_while(|entry| entry.holds())
    }

    /// Returns whether a claim of this mode would hold if it came now.
    fn is_admitted(&self, mode: Mode) -> bool {
        self.entries.is_empty()
            || admit(&self.modes().copied().collect::<Vec<_>>(), mode) == Admission::In
    }

    /// Which holder is in the way of the entry at `at`.
    fn contention(&self, at: usize, now: Moment) -> Contention {
        let waiting = self.entries.len() - self.holders().count();
        let first = self.holders().next();
        let by =
            |first: &Entry| Contention::from(&first.shown(now)).held_for(now.since(first.began));
        first
            .map_or_else(Contention::unknown, by)
            .waiters(waiting - usize::from(at < self.entries.len()))
    }

    fn modes(&self) -> impl Iterator<Item = &Mode> {
        self.entries.iter().map(|entry| &entry.claim.mode)
    }
}
