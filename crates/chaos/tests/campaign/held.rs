//! What a client holds: a guard, or a leadership.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use leasehold::{Fenced, FencingToken, Guard, Leadership, Result};

/// A guard, or a leadership.
pub(super) enum Held {
    Guard(Guard),
    Leadership(Leadership),
}

impl Held {
    pub(super) fn token(&self) -> FencingToken {
        match self {
            Held::Guard(guard) => guard.fencing_token(),
            Held::Leadership(leads) => leads.fencing_token(),
        }
    }

    /// By what claim of this process it holds: turns of one, and re-entries, have one place in the store.
    pub(super) fn claim(&self, p: u64, lock: &str) -> Option<u64> {
        let place = match self {
            Held::Guard(guard) => guard.place(),
            Held::Leadership(leads) => leads.place(),
        };
        let mut number = DefaultHasher::new();
        (p, lock, place?.as_str()).hash(&mut number);
        Some(number.finish())
    }

    pub(super) fn remaining(&self) -> Duration {
        match self {
            Held::Guard(guard) => guard.remaining(),
            Held::Leadership(leads) => leads.remaining(),
        }
    }

    pub(super) fn view(&self) -> leasehold::Held {
        match self {
            Held::Guard(guard) => guard.view(),
            Held::Leadership(leads) => leads.view(),
        }
    }

    /// Asks the store whether it holds.
    pub(super) async fn confirm(&self) -> Result<()> {
        match self {
            Held::Guard(guard) => guard.confirm().await,
            Held::Leadership(leads) => leads.confirm().await,
        }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Held::Guard(guard) => guard.release().await,
            Held::Leadership(leads) => leads.resign().await,
        }
    }
}
