//! The servers themselves: how each starts, serves, fails and ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "tests"
)]

mod etcd;
mod postgres;
mod proxy;
mod redis;
mod zookeeper;
