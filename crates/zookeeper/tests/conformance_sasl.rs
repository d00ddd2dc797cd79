//! The suite against a private ZooKeeper server, as an account of the server's by SASL with DIGEST-MD5.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::account)
}
