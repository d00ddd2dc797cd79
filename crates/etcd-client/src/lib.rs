//! Internal: what the store `leasehold-etcd` is built on, and nothing for anybody else. It changes with it, in any version.
//! Use `leasehold` with the feature `etcd`.
//!
//! It knows endpoints, leases and keys, and no lock: `config` reads an address, `cluster` asks one endpoint after the other and
//! answers in bounded time, `session` keeps one lease for each TTL, `flight` does once what a crowd wants done, `proof` renews a session and
//! shows that it and its keys live, `key` makes keys under one and surely removes them,
//! `mirror` is a copy of what a prefix holds, `mirrors` keeps such copies true by the one stream of `watch`, `error` says honestly what went wrong.

mod cluster;
mod config;
mod error;
mod flight;
mod key;
mod mirror;
mod mirrors;
mod proof;
mod session;
mod watch;

pub use crate::cluster::{Cluster, oldest, put};
pub use crate::config::Config;
pub use crate::error::Failure;
pub use crate::key::LeasedKey;
pub use crate::mirror::{Entry, Event, Mirror};
pub use crate::mirrors::{Mirrored, Mirrors};
pub use crate::session::Session;
