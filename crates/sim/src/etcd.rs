//! etcd: the real store, on etcd-client, over a channel of ours, and a server in memory.
//!
//! - `channel` is the client's end of a call, `wire` its form on the way, `server` answers it,
//!   `about` finds its subject; `world` provides them to worlds; `direct` is for tests.
//! - `kv` is the keys, `txn` the transactions, `lease` the leases, `leader` the work of a leader,
//!   `watch` the watches; `messages` is the protocol.

mod about;
pub(crate) mod channel;
mod direct;
mod kv;
mod leader;
mod lease;
mod messages;
pub(crate) mod server;
mod txn;
mod watch;
mod wire;
pub(crate) mod world;

pub use direct::{Direct, Way};
pub use world::reach;
#[cfg(test)]
mod tests;
