//! What a client keeps of a lock that it holds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test judges by panicking"
)]
#![allow(clippy::large_futures, reason = "a test is one future")]

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::System;

use common::*;
use futures_util::stream::{StreamExt, iter};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn live() -> usize {
    let stats = HEAP.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// A table of the name's claims for each had room for three.
#[tokio::test]
async fn a_held_lock_takes_little_memory() {
    const LOCKS: usize = 4_000;
    within(120, async {
        let server = server().await;
        let store = store(&server).await;
        store
            .lock("warm")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let (before, mut guards) = (live(), Vec::with_capacity(LOCKS));
        let mut locks = iter(0..LOCKS)
            .map(|i| store.lock(("held", i as u64)).acquire())
            .buffer_unordered(64);
        while let Some(guard) = locks.next().await {
            guards.push(guard.unwrap());
        }
        drop(locks);
        let each = (live() - before) / LOCKS;
        println!("{each} bytes for each");
        assert!(each <= 1_280, "{each} bytes for each");
    })
    .await;
}
