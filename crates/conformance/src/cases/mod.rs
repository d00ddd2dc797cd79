//! The cases, grouped by the question that they ask. A case that comes from a real bug names it.

pub(crate) mod at_once;
pub(crate) mod cancel;
pub(crate) mod cost;
pub(crate) mod downgrade;
pub(crate) mod election;
pub(crate) mod exclusion;
pub(crate) mod fence;
pub(crate) mod floor;
pub(crate) mod holding;
pub(crate) mod hygiene;
pub(crate) mod identity;
pub(crate) mod input;
pub(crate) mod lease;
pub(crate) mod loss;
pub(crate) mod modes;
pub(crate) mod multi;
pub(crate) mod names;
pub(crate) mod once;
pub(crate) mod permits;
pub(crate) mod programs;
mod protected;
pub(crate) mod reentry;
pub(crate) mod runtimes;
pub(crate) mod scale;
pub(crate) mod shared;
pub(crate) mod token;
pub(crate) mod waiting;
