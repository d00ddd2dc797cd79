//! The suite against three private ZooKeeper servers, over TLS where both sides show a certificate, with credentials of the scheme
//! *digest*.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::three)
}
