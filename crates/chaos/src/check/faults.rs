//! Which faults there are, and for how long they excuse what.

use std::collections::BTreeMap;

use crate::event::Breaks;

#[derive(Default)]
pub(super) struct Faults {
    active: BTreeMap<u64, (Breaks, Option<String>)>,
    /// Since when the last one has ended, and the store has settled.
    quiet_since: u64,
    /// When the last one ended under which exclusion is not promised, of all locks and of single
    /// ones.
    forfeited: u64,
    forfeited_of: BTreeMap<String, u64>,
    /// When the last fault ended after which tokens of any lock may begin anew.
    disordered: u64,
}

impl Faults {
    pub(super) fn begin(&mut self, id: u64, breaks: Breaks, lock: Option<String>) {
        self.active.insert(id, (breaks, lock));
    }

    /// Ends the fault with this id. Returns what it breaks and the lock it concerns, if there was
    /// such a fault.
    pub(super) fn end(&mut self, id: u64, t: u64, settle: u64) -> Option<(Breaks, Option<String>)> {
        let (breaks, lock) = self.active.remove(&id)?;
        self.quiet_since = self.quiet_since.max(t.saturating_add(settle));
        if breaks == Breaks::Order {
            self.disordered = t;
        }
        if breaks >= Breaks::Exclusion {
            match &lock {
                Some(lock) => drop(self.forfeited_of.insert(lock.clone(), t)),
                None => self.forfeited = t,
            }
        }
        Some((breaks, lock))
    }

    /// Since when the store must serve whoever waits.
    pub(super) fn quiet_since(&self) -> u64 {
        if self.active.is_empty() {
            self.quiet_since
        } else {
            u64::MAX
        }
    }

    /// Until when what was asked for at `t` may hold this lock beside another holder, if it
    /// outlives its end by `lease`. 0: it may not.
    pub(super) fn forfeits(&self, lock: &str, t: u64, lease: u64) -> u64 {
        if self.breaks(lock) {
            return u64::MAX;
        }
        let ended = [Some(&self.forfeited), self.forfeited_of.get(lock)]
            .into_iter()
            .flatten();
        ended
            .filter(|until| t <= **until)
            .map(|until| until.saturating_add(lease))
            .max()
            .unwrap_or_default()
    }

    /// Returns whether two clients may hold this lock now, where a hold may outlive its end by
    /// `lease`.
    pub(super) fn doubles(&self, lock: &str, now: u64, lease: u64) -> bool {
        let mut ended = [Some(&self.forfeited), self.forfeited_of.get(lock)]
            .into_iter()
            .flatten();
        self.breaks(lock) || ended.any(|t| *t > 0 && now <= t.saturating_add(lease))
    }

    /// Returns whether a fault is under way under which two clients may hold this lock.
    fn breaks(&self, lock: &str) -> bool {
        let breaks = |(breaks, of): &(Breaks, Option<String>)| {
            *breaks >= Breaks::Exclusion && of.as_ref().is_none_or(|of| of == lock)
        };
        self.active.values().any(breaks)
    }

    /// Returns whether tokens may have begun anew, so that one asked for at `t` has no place among
    /// the others.
    pub(super) fn disorders(&self, t: u64) -> bool {
        self.disordered > 0 && t <= self.disordered
            || self
                .active
                .values()
                .any(|(breaks, _)| *breaks == Breaks::Order)
    }

    /// Returns whether at most one fault is under way.
    pub(super) fn are_calm(&self) -> bool {
        self.active.len() <= 1
    }
}
