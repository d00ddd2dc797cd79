//! `evict`, and the other ways in which a test ends a hold.

use leasehold_core::Loss;

use crate::claim::Queue;
use crate::entry::Entry;

impl Queue {
    /// Ends the holds that `which` names, and notifies their clients of this loss; of none, if the test says so.
    pub(crate) fn evict(&mut self, loss: Option<Loss>, which: impl Fn(&Entry) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| {
            let ends = entry.holds() && which(entry);
            if let Some(loss) = loss.filter(|_| ends) {
                entry
                    .link
                    .notify(|notifier| notifier.lost(entry.claim.id, loss));
            }
            !ends
        });
        self.entries.len() < before
    }
}
