//! The suite against private ZooKeeper servers, in each set-up of them, or against those of
//! `LEASEHOLD_ZOOKEEPER_URL`.

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
        // Three servers over TLS, where both sides show a certificate, with credentials of the
        // scheme *digest*.
        #[cfg(feature = "tls-no-provider")]
        Setup::new("ensemble", World::three),
        // An account of the server's by SASL with DIGEST-MD5.
        #[cfg(feature = "sasl")]
        Setup::new("sasl", World::account),
    ])
}

async fn one() -> Arc<dyn Harness> {
    match external_url("LEASEHOLD_ZOOKEEPER_URL") {
        Some(url) => Arc::new(World::External(url)),
        None => World::private_one().await,
    }
}
