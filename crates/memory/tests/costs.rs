//! How many allocations a cycle of acquire and release costs, and how much memory a held lock takes: that does not depend on the
//! machine. One test, because others would allocate beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::alloc::System;
use std::time::Duration;

use leasehold_core::{Name, Store};
use leasehold_memory::Memory;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many allocations a cycle may cost, with a name that is made of text for it. Fewer is better: lower it then.
const ALLOCATIONS: usize = 5;
/// How many bytes of the heap a held lock may take, in core and in this store together.
const BYTES: usize = 1024;
const HOLDS: usize = 10_000;

#[tokio::test]
async fn of_a_cycle_and_of_a_hold() {
    let store = Store::new(Memory::new()).ttl(Duration::from_secs(60));
    let mut least = usize::MAX;
    for _ in 0..200 {
        let region = Region::new(ALLOCATOR);
        store
            .lock(("orders", 42))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // A table that grows, or what a task in the background does, is not the cycle's.
        least = least.min(region.change().allocations + region.change().reallocations);
    }
    println!("{least} allocations for each cycle");
    assert!(least <= ALLOCATIONS, "{least} allocations");

    let store = Store::new(Memory::new());
    let names: Vec<Name> = (0..HOLDS).map(|i| Name::from(("name", i))).collect();
    let mut guards = Vec::with_capacity(HOLDS);
    let region = Region::new(ALLOCATOR);
    for name in &names {
        guards.push(store.lock(name).acquire().await.unwrap());
    }
    let change = region.change();
    let each = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated)
        / HOLDS;
    println!("{each} bytes for each held lock");
    assert!(each <= BYTES, "{each} bytes");
    drop(guards);
}
