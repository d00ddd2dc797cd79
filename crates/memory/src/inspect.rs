//! `inspect`, and what observers see.

use std::sync::Arc;

use leasehold_core::backend::Moment;
use leasehold_core::{FencingToken, LockQueue};

use crate::claim::Queue;

impl Queue {
    pub(crate) fn inspect(&self, now: Moment) -> LockQueue {
        let shown = self.entries.iter().map(|entry| entry.shown(now));
        let (holders, waiters) = shown.partition(|entry| entry.token.is_some());
        LockQueue::new(holders, waiters)
    }

    /// The holders and their labels. Observers are notified when they change.
    pub(crate) fn leaders(&self) -> Vec<(FencingToken, Arc<str>)> {
        self.holders()
            .filter_map(|entry| {
                entry
                    .token
                    .map(|(token, _)| (token, entry.claim.label.clone()))
            })
            .collect()
    }
}
