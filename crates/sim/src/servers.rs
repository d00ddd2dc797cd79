//! What a world or a stage asks of the servers of a store.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::seam::Backend;
use leasehold_core::support::Stream;

use crate::network::Pair;
use crate::plan::Wrong;

/// What servers are told when they start.
pub(crate) struct Setting {
    /// What their accidents follow from.
    pub(crate) seed: u64,
    /// The usual lease.
    pub(crate) ttl: Duration,
    /// See `Plan::polls`.
    pub(crate) polls: bool,
    /// The process of whoever evicts, which is patient.
    pub(crate) operator: usize,
}

/// What servers say of themselves, in the counts that real ones have, so that the suite asks the same of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many requests clients have sent.
    pub requests: u64,
    /// How many keys, nodes, leases and sessions there are, without those that end by themselves.
    pub lasting: u64,
    /// How many keys, nodes or rows there are.
    pub contents: u64,
}

/// The servers of a world.
pub(crate) trait Servers: Send + Sync {
    /// A connection of this process with this server.
    fn dial(&self, _pair: Pair) -> io::Result<Box<dyn Stream>> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// What they say of themselves.
    fn counts(&self, now: u64) -> Counts;

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
