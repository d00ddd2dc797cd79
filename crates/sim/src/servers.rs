//! The interface of a world or a stage to the servers of a store.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::backend::Backend;
use leasehold_core::support::Stream;

use crate::network::Pair;
use crate::plan::Wrong;

/// The settings that servers start with.
pub(crate) struct Setting {
    /// The seed of their random choices.
    pub(crate) seed: u64,
    /// The usual lease.
    pub(crate) ttl: Duration,
    /// See `Plan::polls`.
    pub(crate) polls: bool,
    /// The process of the client that evicts, which is patient.
    pub(crate) operator: usize,
}

/// The counts of servers. Real servers have the same counts, so the suite can ask both the same
/// questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of requests that clients have sent.
    pub requests: u64,
    /// The number of keys, nodes, leases and sessions, without those that end by themselves.
    pub lasting: u64,
    /// The number of keys, nodes or rows.
    pub contents: u64,
}

/// The servers of a world.
pub(crate) trait Servers: Send + Sync {
    /// Connects this process with this server.
    fn dial(&self, _pair: Pair) -> io::Result<Box<dyn Stream>> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// The counts of the servers.
    fn counts(&self, now: u64) -> Counts;

    /// Connects a client in this process, in the runtime that polls this.
    fn connect(&self, process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>>;

    /// Makes a fault that concerns the servers themselves. The world makes faults that concern
    /// time, links and processes.
    fn make(&self, wrong: &Wrong, now: u64);

    /// Ends a fault.
    fn heal(&self, _wrong: &Wrong, _now: u64) {}

    /// Does the servers' work that no client asks for.
    fn tick(&self, _now: u64) {}

    /// Returns whether a separate client evicts; otherwise `make` does.
    fn has_operator(&self) -> bool {
        false
    }

    /// The number of holders and waiters that are left after all leases are over.
    fn left(&self, now: u64) -> u64;
}
