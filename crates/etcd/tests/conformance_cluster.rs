//! The suite against three private etcd servers, over TLS where both sides show a certificate, as a user whose signed tokens run out
//! every three seconds.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::three)
}
