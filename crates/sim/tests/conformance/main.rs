//! The conformance suite on the servers in memory, in simulated time. It needs a build with `--cfg leasehold_lab`, as `cargo xtask test` makes.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]
#![allow(clippy::print_stdout, reason = "a test binary of its own")]

use std::process::ExitCode;

#[cfg(leasehold_lab)]
mod suite;

#[cfg(leasehold_lab)]
fn main() -> ExitCode {
    suite::main()
}

#[cfg(not(leasehold_lab))]
fn main() -> ExitCode {
    println!("this build simulates nothing: it needs `--cfg leasehold_lab`");
    ExitCode::FAILURE
}
