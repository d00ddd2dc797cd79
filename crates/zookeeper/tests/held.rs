//! How much memory a held lock takes: that does not depend on the machine. One test, because others would allocate beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::System;

use common::*;
use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold_core::Guard;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many bytes of the heap a held lock may take, in core and in this store together. Fewer is better: lower it then.
const BYTES: usize = 1152;
const HOLDS: usize = 5_000;

fn heap() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

#[tokio::test]
async fn a_held_lock_takes_little_memory() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        hold(&store, "warm", LONG).await.release().await.unwrap();
        let before = heap();
        let taking =
            stream::iter(0..HOLDS).map(|i| store.lock(("held", i as u64)).ttl(LONG).acquire());
        let guards: Vec<Guard> = taking.buffer_unordered(64).try_collect().await.unwrap();
        let each = (heap() - before) / HOLDS;
        println!("{each} bytes for each held lock");
        assert!(each <= BYTES, "{each} bytes");
        drop(guards);
    })
    .await;
}
