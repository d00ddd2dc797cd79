//! The suite against the reference store.

use std::alloc::System;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Backend, async_trait};
use leasehold::memory::Memory;
use leasehold::{Fenced, Result};
use leasehold_conformance::{Capabilities, FencedResource, Harness, Link, Need};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct World(Memory);

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "memory"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.another_client())
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{Contents, DeleteHolder, Fence, Footprint, Heap, Link, Private, PushedWake};
        let able = [
            Private,
            Link,
            Fence,
            DeleteHolder,
            Footprint,
            Contents,
            Heap,
            PushedWake,
        ];
        Capabilities::new(
            &able,
            "a store in memory has no server, no other tools and nothing that survives it",
        )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World(Memory::new()))
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let client = self.0.another_client();
        (Arc::new(client.clone()), Arc::new(Cable(client)))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let client = self.0.another_client();
        (
            Arc::new(client.clone()),
            Arc::new(Counter(client, AtomicU64::new(0))),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        assert!(self.0.delete(full_name));
    }

    async fn footprint(&self) -> u64 {
        self.0.entries() as u64
    }

    async fn contents(&self) -> u64 {
        self.0.entries() as u64
    }

    fn cycles(&self) -> usize {
        1_000_000
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// What the lock protects, beside it in the same store.
struct Counter(Memory, AtomicU64);

#[async_trait]
impl FencedResource for Counter {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        by.check_condition()?;
        Ok(self
            .0
            .while_held(by, || self.1.fetch_add(1, Ordering::Relaxed))
            .is_some())
    }

    async fn written(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

struct Cable(Memory);

#[async_trait]
impl Link for Cable {
    async fn black_hole(&self) {
        self.0.cut_off();
    }
    async fn lose_replies(&self) {
        self.0.lose_replies();
    }
    async fn cut(&self) {
        self.0.cut_off();
    }
    async fn heal(&self) {
        self.0.reconnect();
    }
}

fn main() -> ExitCode {
    leasehold_conformance::main(|| async { Arc::new(World(Memory::new())) as Arc<dyn Harness> })
}
