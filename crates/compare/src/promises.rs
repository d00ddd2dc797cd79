//! What a store says of itself, as data.

use leasehold::{Fairness, Fencing, Guarantees};
use serde::Serialize;

use crate::units::millis;

/// What a store says of itself: [`Guarantees`] as data.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Promises {
    /// The store's kind.
    pub store: &'static str,
    /// What the order of its tokens survives.
    pub fencing: &'static str,
    /// In which order it serves.
    pub fairness: &'static str,
    /// Whether a release wakes the next waiter by a push.
    pub pushed_wake: bool,
    /// Its shortest lease, in milliseconds.
    pub min_ttl_ms: u64,
    /// Leases are rounded up to a multiple of this, in milliseconds.
    pub ttl_step_ms: u64,
    /// How much later than the end of its lease a dead holder's lock may be granted, in milliseconds.
    pub recovery_ms: u64,
    /// How many names it takes in one step at most.
    pub atomic_multi: usize,
    /// Whether the store itself keeps a `min_hold`.
    pub min_hold_outlives_process: bool,
    /// What else an operator should know.
    pub notes: &'static str,
    /// Why this very server may give less.
    pub warnings: Vec<String>,
}

impl From<Guarantees> for Promises {
    fn from(guarantees: Guarantees) -> Promises {
        Promises {
            store: guarantees.store,
            fencing: match guarantees.fencing {
                Fencing::SurvivesDataLoss => "survives_data_loss",
                Fencing::WhileDataLives => "while_data_lives",
                _ => "none",
            },
            fairness: match guarantees.fairness {
                Fairness::Strict => "strict",
                Fairness::Bounded => "bounded",
                _ => "none",
            },
            pushed_wake: guarantees.pushed_wake,
            min_ttl_ms: millis(guarantees.min_ttl),
            ttl_step_ms: millis(guarantees.ttl_step),
            recovery_ms: millis(guarantees.recovery),
            atomic_multi: guarantees.atomic_multi,
            min_hold_outlives_process: guarantees.min_hold_outlives_process,
            notes: guarantees.notes,
            warnings: guarantees.warnings,
        }
    }
}
