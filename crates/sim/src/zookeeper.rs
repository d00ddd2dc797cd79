//! ZooKeeper: the real store, on a client of ours (`crates/sim/zookeeper-client`), and servers in
//! memory.
//!
//! - `server` has connections, and answers by `write` and `read`; `tree` is the nodes, `sessions`
//!   the leader's knowledge of clients.
//! - `ensemble` is one log for several members; `world` provides them to worlds.

mod ensemble;
mod read;
mod server;
mod sessions;
mod tree;
pub(crate) mod world;
mod write;

pub use server::{MiniZooKeeper, Piece};
