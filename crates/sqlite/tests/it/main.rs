//! The store's tests in one process: a module for each subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod completions;
mod fence;
mod lapse;
mod many;
mod support;
