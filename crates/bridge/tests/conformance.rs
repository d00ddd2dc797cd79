//! The suite on a bridge between two stores in memory, as a store of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::System;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold_bridge::Bridge;
use leasehold_conformance::{Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_memory::Memory;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The old store and the new one.
#[derive(Clone)]
struct World(Memory, Memory);

impl World {
    fn new() -> World {
        World(Memory::new(), Memory::new())
    }

    /// A client as another process would have it, and its parts.
    fn another(&self) -> (Bridge, World) {
        let parts = World(self.0.another_client(), self.1.another_client());
        (
            Bridge::new(parts.0.clone(), parts.1.clone()).unwrap(),
            parts,
        )
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "bridge"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.another().0)
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{Contents, DeleteHolder, Footprint, Heap, Link, Private, PushedWake};
        let able = [
            Private,
            Link,
            DeleteHolder,
            Footprint,
            Contents,
            Heap,
            PushedWake,
        ];
        Capabilities::new(
            &able,
            "stores in memory have no server, no other tools and nothing that survives them",
        )
        .lacks(&[Need::AtomicMulti], "no step is one for two stores")
        .lacks(
            &[Need::Fence],
            "a condition of one of its stores covers no hold in both",
        )
        .lacks(
            &[Need::Raise, Need::Floor],
            "its parts are raised, each by itself",
        )
        .lacks(
            &[Need::Once],
            "no step writes a record in one store and reads it in the other",
        )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World::new())
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let (bridge, parts) = self.another();
        (Arc::new(bridge), Arc::new(parts))
    }

    async fn delete_holder(&self, full_name: &str) {
        assert!(self.0.delete(full_name) & self.1.delete(full_name));
    }

    async fn footprint(&self) -> u64 {
        (self.0.entries() + self.1.entries()) as u64
    }

    async fn contents(&self) -> u64 {
        self.footprint().await
    }

    fn cycles(&self) -> usize {
        200_000
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

#[async_trait]
impl Link for World {
    async fn black_hole(&self) {
        self.cut().await;
    }
    async fn lose_replies(&self) {
        self.0.lose_replies();
        self.1.lose_replies();
    }
    async fn cut(&self) {
        self.0.cut_off();
        self.1.cut_off();
    }
    async fn heal(&self) {
        self.0.reconnect();
        self.1.reconnect();
    }
}

fn main() -> ExitCode {
    leasehold_conformance::main(|| async { Arc::new(World::new()) as Arc<dyn Harness> })
}
