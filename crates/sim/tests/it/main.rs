//! The servers in memory beside the real ones, and a slice of the simulated worlds. It needs a build with `--cfg leasehold_lab`, as `cargo xtask test` makes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

#[cfg(leasehold_lab)]
mod mini_redis;
#[cfg(leasehold_lab)]
mod mini_zookeeper;
#[cfg(leasehold_lab)]
mod simulation;

#[cfg(not(leasehold_lab))]
#[test]
fn this_build_simulates() {
    panic!("it needs `--cfg leasehold_lab`");
}
