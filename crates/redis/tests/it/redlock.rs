//! The tests of Redlock against real servers: a module for each subject.

mod common;
mod evict;
mod faults;
mod leases;
mod node_lists;
mod secrets;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod tokens;
mod verbs;
