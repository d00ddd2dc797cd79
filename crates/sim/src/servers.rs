//! What a world asks of the servers of a store.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::seam::Backend;

use crate::plan::Wrong;

/// The servers of a world.
pub(crate) trait Servers {
    /// A client in this process, by the runtime that polls this.
    fn connect(&self, process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>>;

    /// Makes a fault that concerns the servers themselves. The world does what concerns time, links and processes.
    fn make(&self, wrong: &Wrong, now: u64);

    /// Ends it.
    fn heal(&self, _wrong: &Wrong, _now: u64) {}

    /// What servers do by themselves.
    fn tick(&self, _now: u64) {}

    /// Whether a client of nobody evicts; else `make` does.
    fn has_operator(&self) -> bool {
        false
    }

    /// How many holders and waiters there still are, all leases being over.
    fn left(&self, now: u64) -> u64;
}
