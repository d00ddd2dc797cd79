//! The state of one lock at one instant of the history.

use std::collections::BTreeMap;

use super::tokens::{Floor, Tokens};
use crate::{
    event::{Event, Mode, Policy},
    report::Violation,
    rules::Rule,
};

/// A guard that was returned and has not ended.
pub(super) struct Hold {
    pub(super) p: u64,
    pub(super) owner: Option<u64>,
    pub(super) mode: Mode,
    pub(super) tok: u64,
    pub(super) granted: Event,
    /// Until when it says that it is valid.
    pub(super) valid: u64,
    /// A conflicting grant after the end of its validity, as far as that was known.
    pub(super) overtaken: Option<Event>,
    pub(super) downgraded: bool,
    /// Until when it excludes nobody: there was a fault under which exclusion is not promised. 0:
    /// there was none.
    pub(super) forfeit: u64,
    /// Until when the store keeps it though its holder has died.
    pub(super) least: u64,
}

/// An acquire that has not returned.
pub(super) struct Waiter {
    pub(super) p: u64,
    pub(super) owner: Option<u64>,
    pub(super) mode: Mode,
    pub(super) policy: Policy,
    pub(super) deadline: Option<u64>,
    pub(super) invoked: Event,
    /// When the claim that it goes by was asked for.
    pub(super) asked: u64,
    /// The tokens that its own must exceed.
    pub(super) floor: Floor,
    /// Since when it is known to be in the queue.
    pub(super) queued: Option<u64>,
    /// No other acquisition has used the lock since this one was invoked.
    pub(super) alone: bool,
    /// The fire, if it is for work that is done once.
    pub(super) fire: Option<u64>,
}

impl Waiter {
    /// Returns whether it was in the queue before the other one, which it excludes, was invoked.
    /// The other one must not pass it then.
    pub(super) fn precedes(&self, other: &Waiter) -> bool {
        self.policy == Policy::Fair
            && self.queued.is_some_and(|queued| queued < other.invoked.t)
            && self.mode.excludes(other.mode)
            && (self.owner.is_none() || self.owner != other.owner)
    }
}

/// A fire that somebody was told is done.
pub(super) struct Done {
    pub(super) fire: u64,
    pub(super) tok: u64,
    /// Until when its record counts.
    pub(super) until: u64,
    pub(super) told: Event,
}

#[derive(Default)]
pub(super) struct Lock {
    pub(super) name: String,
    pub(super) holds: BTreeMap<u64, Hold>,
    pub(super) waiting: BTreeMap<u64, Waiter>,
    /// Releases that have not returned: of which process, and since when.
    pub(super) releasing: BTreeMap<u64, (u64, u64)>,
    /// Since when the last release is confirmed, or the last waiter gone.
    pub(super) released: u64,
    /// Until when the store may keep what clients left without an answer.
    pub(super) busy_until: u64,
    /// Until when places of those who ask no more may be seen: they are being withdrawn.
    pub(super) withdrawn_by: u64,
    pub(super) tokens: Tokens,
    /// The greatest token that the resource has seen since tokens began anew, and before.
    pub(super) seen: Option<(u64, Event)>,
    pub(super) ever_seen: u64,
    /// The last leader that each observer saw.
    pub(super) observers: BTreeMap<u64, (u64, Event)>,
    /// Since when the process of its holder is dead, while others wait, and whether no other fault
    /// has been there since.
    pub(super) orphaned: Option<(u64, bool)>,
    /// What somebody was told is done.
    pub(super) done: Vec<Done>,
    /// The greatest token of a record that may have been forgotten.
    pub(super) forgotten: u64,
}

impl Lock {
    pub(super) fn violation(&self, rule: Rule, text: String, events: Vec<Event>) -> Violation {
        Violation {
            rule,
            lock: self.name.clone(),
            text,
            events,
        }
    }

    pub(super) fn busy_until(&mut self, t: u64) {
        self.busy_until = self.busy_until.max(t);
    }

    /// Notes that a waiter gave up. Its place is withdrawn, or will be within `wake`. A waiter may
    /// have been in the way of others up to now, unless one that was in the queue before it still
    /// waits; so may a client that had the lock while it waited for another one.
    pub(super) fn withdrawn(&mut self, waiter: &Waiter, t: u64, wake: u64) {
        self.withdrawn_by = self.withdrawn_by.max(t.saturating_add(wake));
        let queues = waiter.policy != Policy::Fast && waiter.owner.is_none();
        let is_behind = queues && self.waiting.values().any(|other| other.precedes(waiter));
        let waited = waiter.policy != Policy::Try || waiter.deadline.is_some();
        if waited && !is_behind {
            self.released = self.released.max(t);
        }
    }

    /// Returns whether no client uses the lock and nothing can be left of it in the store.
    pub(super) fn is_unused(&self, t: u64) -> bool {
        let nobody = self.holds.is_empty() && self.waiting.is_empty() && self.releasing.is_empty();
        nobody && self.busy_until.max(self.withdrawn_by) < t
    }

    /// Since when the store must have it free, for readers or for whoever waits, if it keeps what
    /// has not ended for `settle`.
    pub(super) fn free_since(&self, settle: u64, for_readers: bool) -> u64 {
        let held = self
            .holds
            .values()
            .filter(|hold| !for_readers || hold.mode != Mode::Shared);
        let held = held.map(|hold| hold.valid.saturating_add(settle));
        let releasing = self
            .releasing
            .values()
            .map(|(_, since)| since.saturating_add(settle));
        held.chain(releasing)
            .chain([self.released, self.busy_until])
            .max()
            .unwrap_or_default()
    }

    /// A process has died at `t`: what it held excludes nobody any more, and the store may keep it
    /// for a while.
    pub(super) fn forget_process(&mut self, p: u64, (t, calm): (u64, bool), keeps_until: u64) {
        // Only what has died is in the way of this one. A program under the command says only now
        // and then that it holds.
        let keeps_out = |waiter: &Waiter, died: bool| {
            let mut held = self
                .holds
                .values()
                .filter(|hold| (hold.p == p) == died && (hold.valid > t || !died));
            held.any(|hold| waiter.mode.excludes(hold.mode))
        };
        let mut waiters = self
            .waiting
            .values()
            .filter(|waiter| waiter.p != p && waiter.policy != Policy::Try);
        let is_kept = self
            .holds
            .values()
            .any(|hold| hold.p == p && hold.least > t);
        if !is_kept && waiters.any(|waiter| keeps_out(waiter, true) && !keeps_out(waiter, false)) {
            self.orphaned = Some((t, calm));
        }
        let before = self.holds.len() + self.waiting.len() + self.releasing.len();
        self.holds.retain(|_, hold| hold.p != p);
        self.waiting.retain(|_, waiter| waiter.p != p);
        self.releasing.retain(|_, (of, _)| *of != p);
        if self.holds.len() + self.waiting.len() + self.releasing.len() < before {
            self.busy_until(keeps_until);
        }
    }
}
