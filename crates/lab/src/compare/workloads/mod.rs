//! The workloads, one file each: what they do to a store, and what is measured.

mod alone;
mod common;
mod contended;
mod counting;
mod recovery;
mod renewal;

pub(crate) use alone::alone;
pub(crate) use common::{distribution, round_trips};
pub(crate) use contended::contended;
pub(crate) use recovery::recovery;
pub(crate) use renewal::renewal;
