//! The suite against a private ZooKeeper server over TLS, where both sides show a certificate.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::secure_one)
}
