//! The suite against private Redis servers, in each set-up of them, or against those of `LEASEHOLD_REDIS_URL` and
//! `LEASEHOLD_REDLOCK_URL`.

#![allow(dead_code, unreachable_pub, reason = "some set-ups need a feature")]

mod cluster;
mod harness;
#[cfg(feature = "redlock")]
mod redlock;

use std::alloc::System;
use std::process::ExitCode;
use std::sync::Arc;

use harness::World;
use leasehold_conformance::{Harness, Setup, main_of};
use leasehold_testbed::external_url;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    main_of(vec![
        Setup::new("", one),
        // The master of two replicas that three sentinels watch, with passwords for both.
        Setup::new("sentinel", World::behind_sentinels),
        // Three primaries, each with a replica.
        Setup::new("cluster", || cluster::World::start(1)),
        // A proxy refuses scripts that touch keys which they did not declare.
        Setup::new("declared", World::with_declared_keys),
        #[cfg(feature = "redlock")]
        Setup::new("redlock_declared", || redlock::World::start_declared(false)),
        // A proxy refuses `HELLO`, and most commands.
        Setup::new("resp2", World::resp2_one),
        // The user may run no scripts, and the URL says so.
        Setup::new("plain", World::without_scripts),
        // Both sides show a certificate, and the user has the documented rights.
        #[cfg(feature = "tls-no-provider")]
        Setup::new("tls", World::secure_one),
        // Three servers that know nothing of each other.
        #[cfg(feature = "redlock")]
        Setup::new("redlock", three),
        #[cfg(all(feature = "redlock", feature = "tls-no-provider"))]
        Setup::new("redlock_tls", || redlock::World::start_secure(false)),
    ])
}

async fn one() -> Arc<dyn Harness> {
    match external_url("LEASEHOLD_REDIS_URL") {
        Some(url) => Arc::new(World::External(url)),
        None => World::private_one().await,
    }
}

#[cfg(feature = "redlock")]
async fn three() -> Arc<dyn Harness> {
    match external_url("LEASEHOLD_REDLOCK_URL") {
        Some(url) => Arc::new(redlock::External(url)),
        None => redlock::World::start(false).await,
    }
}
