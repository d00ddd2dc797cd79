//! The checker: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod fuzz;
mod legal;
mod rules;
