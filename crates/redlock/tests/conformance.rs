//! The suite against three private Redis servers that know nothing of each other.

#![allow(dead_code, unreachable_pub, reason = "a part is for the suite over TLS")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(|| World::start(false))
}
