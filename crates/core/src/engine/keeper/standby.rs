//! The runtimes that stand by for the keeper.
//!
//! A program may have several runtimes, and the one in which the first lock was taken may end or
//! block. If the keeper belonged to it, all locks of the client would be lost with it. Therefore
//! each runtime that uses the client has a small task that stands by. The keeper runs in one of
//! them, and another one takes over when that one ends, or is late for its own plan by half a
//! second.
//!
//! For a moment two may run, if the first one was merely slow. That is harmless, because renewals
//! are idempotent.

use std::sync::Arc;

use tokio::runtime::Id;

use crate::support::locked;
use crate::support::own_keys::OwnSet;
use crate::support::sync::{Mutex, Notify};

/// The runtimes on standby for a keeper `K`.
pub(super) struct Standby<K> {
    /// Wakes the runtimes on standby: they check that the keeper runs.
    pub(super) called: Notify,
    present: Mutex<Present<K>>,
}

struct Present<K> {
    runtimes: OwnSet<Id>,
    /// A keeper that lost its runtime with work left, and that nothing else may keep alive.
    orphan: Option<Arc<K>>,
}

impl<K> Standby<K> {
    pub(super) fn new() -> Standby<K> {
        Standby {
            called: Notify::new(),
            present: Mutex::new(Present {
                runtimes: OwnSet::default(),
                orphan: None,
            }),
        }
    }

    /// Makes this runtime stand by from now on; returns false if it already did.
    pub(super) fn come(&self, runtime: Id) -> bool {
        locked(&self.present).runtimes.insert(runtime)
    }

    /// This runtime no longer stands by.
    pub(super) fn leave(&self, runtime: Id) {
        let mut present = locked(&self.present);
        present.runtimes.remove(&runtime);
        let orphan = if present.runtimes.is_empty() {
            present.orphan.take()
        } else {
            None
        };
        drop(present);
        drop(orphan);
    }

    /// Runtimes on standby check that the keeper runs.
    pub(super) fn call(&self) {
        self.called.notify_waiters();
    }

    /// Keeps it alive until another runtime goes on with its work, if there is another.
    pub(super) fn hand_over(&self, keeper: &Arc<K>) {
        let mut present = locked(&self.present);
        let before = if present.runtimes.is_empty() {
            None
        } else {
            present.orphan.replace(keeper.clone())
        };
        drop(present);
        drop(before);
        self.call();
    }

    pub(super) fn found(&self) {
        let orphan = locked(&self.present).orphan.take();
        drop(orphan);
    }
}
