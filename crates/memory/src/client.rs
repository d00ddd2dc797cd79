//! One client's link to the store, which tests can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use leasehold_core::backend::{Notifier, Place};

/// The way to one client: its notifier, and the messages that arrive. Its notifications are lost while its replies are.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    /// That of every claim in this store: the token says which claim it is.
    place: Place,
    notifier: Notifier,
    passes: AtomicU8,
}

/// The messages that arrive between a client and the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    All = 0,
    /// Neither replies nor notifications.
    Requests = 1,
    Nothing = 2,
}

impl Link {
    /// A link to the store whose claims have this place.
    pub(crate) fn to(place: Place) -> Link {
        Link(Arc::new(Inner {
            place,
            notifier: Notifier::new(),
            passes: AtomicU8::new(Passes::All as u8),
        }))
    }

    pub(crate) fn place(&self) -> &Place {
        &self.0.place
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.0.notifier
    }

    pub(crate) fn set(&self, passes: Passes) {
        self.0.passes.store(passes as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, passes: Passes) -> bool {
        self.0.passes.load(Ordering::Acquire) == passes as u8
    }

    pub(crate) fn notify(&self, how: impl FnOnce(&Notifier)) {
        if self.is(Passes::All) {
            how(self.notifier());
        }
    }
}
