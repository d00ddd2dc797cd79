//! The suite against the master of two replicas that three private sentinels watch, with passwords for both.

#![allow(dead_code, unreachable_pub, reason = "a part is for the suite without Sentinel")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::behind_sentinels)
}
