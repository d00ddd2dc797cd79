//! What a store, configured as it is, really gives: data that services may check before they start.

use std::time::Duration;

use crate::seam::error::{Error, ErrorKind, Result};

/// What this store really gives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Guarantees {
    /// The store's name.
    pub store: &'static str,
    /// Where tokens come from, and what their order survives.
    pub fencing: Fencing,
    /// In which order waiters are served.
    pub fairness: Fairness,
    /// A release wakes the next waiter by a push; otherwise waiters ask again.
    pub pushed_wake: bool,
    /// The shortest lease.
    pub min_ttl: Duration,
    /// Leases are rounded up to a multiple of this.
    pub ttl_step: Duration,
    /// How much later than the end of its lease a dead holder's lock may be granted to the next.
    pub recovery: Duration,
    /// How many names a [`MultiLock`](crate::MultiLock) takes in one step at most, so that no onlooker sees a part of them. More are
    /// taken one after the other; 1: always.
    pub atomic_multi: usize,
    /// A lock that was given back within its `min_hold` stays taken until then, and no longer, also if its process ends first.
    /// Otherwise it is free as soon as the store notices that the process has gone, at the latest after its lease.
    pub min_hold_outlives_process: bool,
    /// What else an operator should know.
    pub notes: &'static str,
    /// Why this very server may give less, by how it was set up when the store connected; empty if the store found nothing, or
    /// does not ask. [`Store::new`](crate::Store::new) also tells `tracing` each: level `WARN`, target `leasehold`.
    pub warnings: Vec<String>,
}

impl Guarantees {
    /// Nothing promised: the start of a store's honest description.
    pub const fn none(store: &'static str) -> Guarantees {
        Guarantees {
            store,
            fencing: Fencing::None,
            fairness: Fairness::None,
            pushed_wake: false,
            min_ttl: Duration::from_millis(100),
            ttl_step: Duration::from_millis(1),
            recovery: Duration::from_secs(1),
            atomic_multi: 1,
            min_hold_outlives_process: false,
            notes: "",
            warnings: Vec::new(),
        }
    }

    /// Sets the fencing.
    #[must_use]
    pub const fn fencing(mut self, fencing: Fencing) -> Guarantees {
        self.fencing = fencing;
        self
    }

    /// Sets the order of service.
    #[must_use]
    pub const fn fairness(mut self, fairness: Fairness) -> Guarantees {
        self.fairness = fairness;
        self
    }

    /// Says whether a release pushes the next waiter awake.
    #[must_use]
    pub const fn pushed_wake(mut self, pushed: bool) -> Guarantees {
        self.pushed_wake = pushed;
        self
    }

    /// Sets the shortest lease and the step to which leases are rounded up.
    #[must_use]
    pub const fn ttl(mut self, min: Duration, step: Duration) -> Guarantees {
        self.min_ttl = min;
        self.ttl_step = step;
        self
    }

    /// Sets how much later than its lease a dead holder's lock may be granted.
    #[must_use]
    pub const fn recovery(mut self, recovery: Duration) -> Guarantees {
        self.recovery = recovery;
        self
    }

    /// Sets how many names are taken in one step.
    #[must_use]
    pub const fn atomic_multi(mut self, names: usize) -> Guarantees {
        self.atomic_multi = names;
        self
    }

    /// Says whether a `min_hold` is kept when its process ends.
    #[must_use]
    pub const fn min_hold_outlives_process(mut self, outlives: bool) -> Guarantees {
        self.min_hold_outlives_process = outlives;
        self
    }

    /// Sets the remarks.
    #[must_use]
    pub const fn notes(mut self, notes: &'static str) -> Guarantees {
        self.notes = notes;
        self
    }

    /// Sets the warnings.
    #[must_use]
    pub fn warnings(mut self, warnings: Vec<String>) -> Guarantees {
        self.warnings = warnings;
        self
    }

    /// Refuses a store whose tokens promise less: for services that would rather not start.
    pub fn require_fencing(&self, at_least: Fencing) -> Result<()> {
        if self.fencing >= at_least {
            return Ok(());
        }
        let message = format!("{} gives fencing {:?}, and {at_least:?} is required", self.store, self.fencing);
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// What the order of tokens survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Fencing {
    /// Tokens may not rise.
    None,
    /// Tokens rise for as long as the store keeps its data.
    WhileDataLives,
    /// Tokens rise even when the store has lost its data, given a clock that does not step back past the loss.
    SurvivesDataLoss,
}

/// In which order waiters are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Fairness {
    /// Any.
    None,
    /// Nobody is passed for ever.
    Bounded,
    /// `fair` claims in the order in which the store took their places.
    Strict,
}
