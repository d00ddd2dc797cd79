//! The facade without a server: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

#[cfg(feature = "memory")]
mod blocking;
#[cfg(all(feature = "bridge", feature = "memory"))]
mod bridge;
mod connect;
