//! The store's tests against real servers: a module for each subject, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod access;
mod base;
mod common;
mod completions;
mod counts;
mod crowd;
mod ensemble;
mod failover;
mod faults;
mod fence;
mod frozen;
mod idle;
mod interop;
mod many;
#[cfg(feature = "tls-no-provider")]
mod members;
mod notifications;
mod numbers;
mod own_client;
mod paused;
mod places;
mod queue;
mod reconnect;
mod restored;
#[cfg(all(feature = "sasl", feature = "tls-no-provider"))]
mod sasl;
mod stress;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod verbs;
