//! The suite against a private Redis server over TLS, where both sides show a certificate, as a user with the documented rights.

#![allow(dead_code, unreachable_pub, reason = "a part is for the suite without TLS")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::secure_one)
}
