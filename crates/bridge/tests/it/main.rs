//! The bridge over stores in memory: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod rules;
mod stages;
mod support;
mod walk;
