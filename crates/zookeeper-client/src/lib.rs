//! Internal: what the store `leasehold-zookeeper` is built on, and nothing for anybody else. It changes with it, in any
//! version. Use `leasehold` with the feature `zookeeper`.
//!
//! It knows servers, sessions and nodes, and no lock. Sessions are opened by whoever comes first, one for each TTL in use, kept
//! alive, proven to live by writes, and closed when nobody needs them; whoever lives in one hears of that as its [`Tenant`].
//!
//! `config` reads an address, `sessions` has one session for each TTL, `session` is one of them, `connection` is what
//! it is connected by for the moment, `heart` keeps it alive, `proof` says since when it surely lives, `node` is made through it and surely removed, `read` asks for nodes that come and go, `error`
//! says honestly what went wrong.

mod config;
mod connection;
mod error;
mod heart;
mod node;
mod proof;
mod read;
mod session;
mod sessions;

pub use crate::config::Config;
pub use crate::connection::Client;
pub use crate::error::{Answer, reading, writing};
pub use crate::node::Node;
pub use crate::read::{AT_ONCE, children, exists, found, read};
pub use crate::session::{Session, Tenant};
pub use crate::sessions::Sessions;
