//! The suite against private etcd servers, in each set-up of them, or against those of `LEASEHOLD_ETCD_URL`.

#![allow(dead_code, unreachable_pub, reason = "some set-ups need a feature")]

mod harness;

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
        // Three members over TLS, where both sides show a certificate, as a user whose signed tokens
        // run out every three seconds.
        #[cfg(feature = "tls-no-provider")]
        Setup::new("cluster", World::three),
        // One member, where both sides show a certificate.
        #[cfg(feature = "tls-no-provider")]
        Setup::new("tls", World::secure_one),
    ])
}

async fn one() -> Arc<dyn Harness> {
    match external_url("LEASEHOLD_ETCD_URL") {
        Some(url) => Arc::new(World::External(url)),
        None => World::private_one().await,
    }
}
