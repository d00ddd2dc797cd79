//! The store's tests against real servers: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod attacks;
mod completions;
mod costs;
mod failover;
mod faults;
mod fence;
mod interop;
#[cfg(all(feature = "bb8", feature = "deadpool", feature = "sqlx"))]
mod own_pool;
mod pooled;
mod setup;
mod support;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod urls;
mod users;
