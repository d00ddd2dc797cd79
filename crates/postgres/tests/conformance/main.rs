//! The suite against a private PostgreSQL server, in each way to reach it, or against the one of
//! `LEASEHOLD_POSTGRES_URL`.

#![allow(dead_code, unreachable_pub, reason = "some set-ups need a feature")]

mod harness;

use std::alloc::System;
use std::process::ExitCode;
use std::sync::Arc;

use harness::{External, World};
use leasehold_conformance::{Harness, Setup, main_of};
use leasehold_testbed::external_url;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    main_of(vec![
        Setup::new("", one),
        // Over pools that the program has already.
        #[cfg(feature = "deadpool")]
        Setup::new("deadpool", World::deadpool),
        #[cfg(feature = "sqlx")]
        Setup::new("sqlx", World::sqlx),
        // Through PgBouncer in transaction mode, with notifications from the server itself.
        Setup::new("listen", World::listen),
        // Through PgBouncer in transaction mode, where waiters poll.
        Setup::new("pooled", World::pooled),
    ])
}

async fn one() -> Arc<dyn Harness> {
    match external_url("LEASEHOLD_POSTGRES_URL") {
        Some(url) => External::at(url).await,
        None => World::direct().await,
    }
}
