//! Internal: what the store `leasehold-zookeeper` is built on, and nothing for anybody else. It changes with it, in any
//! version. Use `leasehold` with the feature `zookeeper`.
//!
//! It knows servers, sessions and nodes, and no lock: sessions are opened by whoever comes first, one for each TTL in use, kept
//! alive, proven to live by writes, and closed when nobody needs them. Whoever lives in them hears of that as their [`Tenant`].
//!
//! `config` reads an address, `sessions` has one session for each TTL, `session` is one of them, `heart` keeps it alive, `proof`
//! says since when it surely lives, `bell` wakes it from outside, `nodes` reads many nodes at once, `error` says honestly what
//! went wrong.

mod bell;
mod config;
mod error;
mod heart;
mod nodes;
mod proof;
mod session;
mod sessions;

pub use crate::config::Config;
pub use crate::error::{reading, writing};
pub use crate::nodes::{AT_ONCE, children, children_of, data_of, remove};
pub use crate::session::{Session, Tenant};
pub use crate::sessions::Sessions;
