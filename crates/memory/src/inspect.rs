//! `inspect`, and what observers see.

use std::sync::Arc;

use leasehold_core::{FencingToken, LockQueue};

use crate::claim::Queue;
use crate::entry::Entry;

impl Queue {
    pub(crate) fn inspect(&self) -> LockQueue {
        let (holders, waiters) = self.0.iter().map(Entry::shown).partition(|entry| entry.token.is_some());
        LockQueue::new(holders, waiters)
    }

    /// The holders and their labels. Observers are notified when they change.
    pub(crate) fn holders(&self) -> Vec<(FencingToken, Arc<str>)> {
        self.0.iter().filter_map(|entry| entry.token.map(|(token, _)| (token, entry.claim.label.clone()))).collect()
    }
}
