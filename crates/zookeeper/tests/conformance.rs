//! The suite against a private ZooKeeper server, or the one of `LEASEHOLD_ZOOKEEPER_URL`.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;
use std::sync::Arc;

use harness::World;
use leasehold_conformance::Harness;
use leasehold_testbed::external_url;

fn main() -> ExitCode {
    leasehold_conformance::main(|| async {
        match external_url("LEASEHOLD_ZOOKEEPER_URL") {
            Some(url) => Arc::new(World::External(url)) as Arc<dyn Harness>,
            None => World::private_one().await,
        }
    })
}
