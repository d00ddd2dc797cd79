//! How many allocations a cycle of acquire and release costs: they do not depend on the machine. One test, because others would
//! allocate beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "it/support/mod.rs"]
mod support;

use std::alloc::System;
use std::time::Duration;

use leasehold_core::Store;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many allocations a cycle may cost, those of the client crate included. Fewer is better: lower it then.
const ALLOCATIONS: usize = 30;

#[tokio::test]
async fn of_a_cycle() {
    bounded(async {
        let server = server().await;
        let lock = Store::new(client(&server).await)
            .lock("a")
            .ttl(Duration::from_secs(60));
        let mut least = usize::MAX;
        for _ in 0..200 {
            let region = Region::new(ALLOCATOR);
            lock.acquire().await.unwrap().release().await.unwrap();
            // A table that grows, or what a task in the background does, is not the cycle's.
            least = least.min(region.change().allocations + region.change().reallocations);
        }
        println!("{least} allocations for each cycle");
        assert!(least <= ALLOCATIONS, "{least} allocations");
    })
    .await;
}
