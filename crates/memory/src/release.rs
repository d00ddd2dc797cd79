//! `release` and `release_after`.

use leasehold_core::backend::{ClaimId, Moment};

use crate::claim::Queue;

impl Queue {
    pub(crate) fn release(&mut self, id: ClaimId) {
        if let Some(at) = self.entries.iter().position(|entry| entry.claim.id == id) {
            self.entries.remove(at);
        }
    }

    /// Lets a hold end at this instant, or before if it was to end before. Waiters counted on its lease, and ask anew.
    pub(crate) fn release_after(&mut self, id: ClaimId, at: Moment) {
        let Some(entry) = self
            .entries
            .iter_mut()
            .find(|entry| entry.claim.id == id && entry.holds())
        else {
            return;
        };
        entry.ends = Some(entry.ends.map_or(at, |before| before.min(at)));
        self.ends_at(at);
        let waiting = self.entries.iter().filter(|entry| !entry.holds());
        waiting.for_each(|entry| {
            entry
                .link
                .notify(|notifier| notifier.claim_again(entry.claim.id));
        });
    }
}
