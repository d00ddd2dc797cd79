//! The program that runs simulated worlds. It simulates only where it is built with `--cfg leasehold_lab`, as `cargo xtask sim` does.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that talks to its user"
)]

use std::process::ExitCode;

#[cfg(leasehold_lab)]
mod worlds;

#[cfg(leasehold_lab)]
fn main() -> ExitCode {
    worlds::main()
}

#[cfg(not(leasehold_lab))]
fn main() -> ExitCode {
    eprintln!(
        "this build simulates nothing: `cargo xtask sim` builds it with `--cfg leasehold_lab`"
    );
    ExitCode::FAILURE
}
