//! Internal: what the stores `leasehold-redis` and `leasehold-redlock` share, for no other user. It changes with
//! them, in any version. Use `leasehold` with the feature `redis` or `redlock`.
//!
//! It knows servers, keys and scripts, and no lock: `server` reads an address, `connection` keeps one connection alive,
//! `inbox` turns its pushes into notifications, `names` makes keys, `walk` finds names among them, `script` runs Lua, `record` reads
//! what it answers, `cluster` finds the node of a key, `error` says honestly what went wrong, `checks` asks how a server is set up.

mod checks;
mod cluster;
mod connection;
mod error;
mod inbox;
mod names;
mod record;
mod script;
mod server;
mod walk;

pub use crate::checks::warnings;
pub use crate::cluster::{Cluster, Reach, fence_of, slot_of};
pub use crate::connection::Connection;
pub use crate::error::{again, junk, of_request};
pub use crate::inbox::{Inbox, attempt};
pub use crate::names::Names;
pub use crate::record::{Ahead, Fields, record};
pub use crate::script::{CLOCK, Call, GivenUp, Script, run_all};
pub use crate::server::{Sentinels, Server, granted_ttl, server_of_sentinels, servers};
pub use crate::walk::walk;
