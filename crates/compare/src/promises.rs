//! The guarantees of a store, as data.

use leasehold::{Fairness, Fencing, Guarantees};
use serde::Serialize;

use crate::units::millis;

/// The [`Guarantees`] of a store, as data.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Promises {
    /// The store's kind.
    pub store: &'static str,
    /// The events that the order of its tokens survives.
    pub fencing: &'static str,
    /// In which order it serves.
    pub fairness: &'static str,
    /// A release wakes the next waiter by a push.
    pub pushed_wake: bool,
    /// Its shortest lease, in milliseconds.
    pub min_ttl_ms: u64,
    /// Its longest lease, in milliseconds: a longer one is shortened to it. `None`: no limit of its own, or none that it knows.
    pub max_ttl_ms: Option<u64>,
    /// Leases are rounded up to a multiple of this, in milliseconds.
    pub ttl_step_ms: u64,
    /// The delay between the end of a dead holder's lease and the next grant, at most, in milliseconds.
    pub recovery_ms: u64,
    /// The greatest number of names that it takes in one step.
    pub atomic_multi: usize,
    /// The store itself keeps a `min_hold`.
    pub min_hold_outlives_process: bool,
    /// Further notes for operators.
    pub notes: &'static str,
    /// Why this very server may give less.
    pub warnings: Vec<String>,
}

impl From<Guarantees> for Promises {
    fn from(guarantees: Guarantees) -> Promises {
        Promises {
            store: guarantees.store(),
            fencing: match guarantees.fencing() {
                Fencing::SurvivesDataLoss => "survives_data_loss",
                Fencing::WhileDataLives => "while_data_lives",
                _ => "none",
            },
            fairness: match guarantees.fairness() {
                Fairness::Strict => "strict",
                Fairness::Bounded => "bounded",
                _ => "none",
            },
            pushed_wake: guarantees.pushed_wake(),
            min_ttl_ms: millis(guarantees.min_ttl()),
            max_ttl_ms: guarantees.max_ttl().map(millis),
            ttl_step_ms: millis(guarantees.ttl_step()),
            recovery_ms: millis(guarantees.recovery()),
            atomic_multi: guarantees.atomic_multi(),
            min_hold_outlives_process: guarantees.min_hold_outlives_process(),
            notes: guarantees.notes(),
            warnings: guarantees.warnings().to_vec(),
        }
    }
}
