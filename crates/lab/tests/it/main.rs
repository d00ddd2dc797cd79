//! `compare` and `verify` against real servers, and the servers of `compose/`, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod compose;
mod servers;
mod stores;
