//! The suite against three private Redis servers that know nothing of each other, or those of `LEASEHOLD_REDLOCK_URL`.

#![allow(dead_code, unreachable_pub, reason = "a part is for the suite over TLS")]

mod harness;

use std::process::ExitCode;
use std::sync::Arc;

use harness::{External, World};
use leasehold_conformance::Harness;
use leasehold_testbed::external_url;

fn main() -> ExitCode {
    leasehold_conformance::main(|| async {
        match external_url("LEASEHOLD_REDLOCK_URL") {
            Some(url) => Arc::new(External(url)) as Arc<dyn Harness>,
            None => World::start(false).await,
        }
    })
}
