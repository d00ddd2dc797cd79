//! The suite against a private PostgreSQL server, or the one of `LEASEHOLD_POSTGRES_URL`.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::{External, World};
use leasehold_testbed::external_url;

fn main() -> ExitCode {
    leasehold_conformance::main(|| async {
        match external_url("LEASEHOLD_POSTGRES_URL") {
            Some(url) => External::at(url).await,
            None => World::direct().await,
        }
    })
}
