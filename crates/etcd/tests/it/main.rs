//! The store's tests against real servers: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod accounts;
mod base;
mod clauses;
mod common;
mod completions;
mod counts;
mod discovery;
mod evict;
mod failover;
mod faults;
mod interop;
mod leftovers;
mod liveness;
mod load;
#[cfg(feature = "tls-no-provider")]
mod members;
mod modes;
mod own_client;
mod queue;
mod release;
mod silence;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod users;
