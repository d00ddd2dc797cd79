//! One client's link to the store, which tests can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use leasehold_core::seam::Notifier;

/// Where a client is notified, and what arrives on its way. Its notifications are lost while its replies are.
#[derive(Clone, Default)]
pub(crate) struct Link {
    pub(crate) notifier: Notifier,
    passes: Arc<AtomicU8>,
}

/// What arrives between a client and the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    All = 0,
    /// Neither replies nor notifications.
    Requests = 1,
    Nothing = 2,
}

impl Link {
    pub(crate) fn set(&self, passes: Passes) {
        self.passes.store(passes as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, passes: Passes) -> bool {
        self.passes.load(Ordering::Acquire) == passes as u8
    }

    pub(crate) fn notify(&self, how: impl FnOnce(&Notifier)) {
        if self.is(Passes::All) {
            how(&self.notifier);
        }
    }
}
