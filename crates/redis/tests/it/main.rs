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
mod cluster;
mod cluster_faults;
mod cluster_identity;
mod cluster_nodes;
mod cluster_notices;
mod completions;
mod damaged;
mod data_loss;
mod failover;
mod faults;
mod fence;
mod half_open;
mod inspect;
mod integration;
mod interop;
mod layout;
mod leases;
mod lost_releases;
mod many;
mod model;
mod modes;
mod observe;
mod own_client;
mod plain;
mod programs;
#[cfg(feature = "redlock")]
mod redlock;
mod resp2;
mod secrets;
mod sentinel;
mod setup;
mod stale_writes;
mod stress;
mod support;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod urls;
mod verbs;
