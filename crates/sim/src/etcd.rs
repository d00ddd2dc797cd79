//! etcd: the real store, by etcd-client, over a channel of ours, and a server in memory.
//!
//! - `channel` is the client's end of a call, `wire` what is between, `server` answers, `about` what; `world` is how worlds have them; `direct` is for tests.
//! - `kv` is the keys, `txn` the transactions, `lease` the leases, `leader` what a leader does, `watch` the watches; `messages` is the protocol.

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
