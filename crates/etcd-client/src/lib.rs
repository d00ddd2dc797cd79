//! Internal: what the store `leasehold-etcd` is built on, and nothing for anybody else. It changes with it, in any version.
//! Use `leasehold` with the feature `etcd`.
//!
//! It knows endpoints, leases and keys, and no lock: `config` reads an address, `cluster` asks one endpoint after the other and
//! answers in bounded time, `session` keeps one lease for each TTL, `key` makes keys under one and surely removes them,
//! `watch` follows prefixes, `error` says honestly what went wrong.

mod cluster;
mod config;
mod error;
mod key;
mod session;
mod watch;

pub use crate::cluster::{Cluster, oldest, put};
pub use crate::config::Config;
pub use crate::error::Failure;
pub use crate::key::LeasedKey;
pub use crate::session::Session;
pub use crate::watch::{Broken, Watch};
