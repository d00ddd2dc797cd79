//! `evict`, and the other ways in which a test ends a hold.

use leasehold_core::Loss;

use crate::claim::Queue;
use crate::entry::Entry;

impl Queue {
    /// Ends the holds that `which` names, and notifies their clients of this loss; of none, if the test says so.
    pub(crate) fn evict(&mut self, loss: Option<Loss>, which: impl Fn(&Entry) -> bool) -> bool {
        let ended: Vec<Entry> = self.0.extract_if(.., |entry| entry.holds() && which(entry)).collect();
        if let Some(loss) = loss {
            ended.iter().for_each(|entry| entry.link.notify(|notifier| notifier.lost(entry.claim.id, loss)));
        }
        !ended.is_empty()
    }
}
