//! The suite against a private PostgreSQL server, through PgBouncer in transaction mode, where waiters poll.

#![allow(dead_code, unreachable_pub, reason = "a part is for the other suites")]

mod harness;

use std::process::ExitCode;

use harness::World;

fn main() -> ExitCode {
    leasehold_conformance::main(World::pooled)
}
