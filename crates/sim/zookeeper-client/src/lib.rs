//! The parts of the crate `zookeeper-client` that the ZooKeeper store uses, over the network of a
//! simulated machine: a session on one connection.
//!
//! That crate connects by TCP alone, from a thread of its own, and reads the real clock. This one
//! has its names and its plain types, and does the same in tokio's time: it speaks ZooKeeper's
//! protocol, sends each request at once and in order, pings, gives up a silent server, and closes
//! the session when no client of it is left. It connects once: the store uses no second connection
//! of a client.

mod client;
mod connector;
mod multi;
mod request;
mod serve;
mod values;
pub mod wire;

pub use zookeeper_client::{
    Acl, Acls, AuthId, Error, MultiReadResult, MultiWriteError, MultiWriteResult, Permission,
    SessionId, SessionState, Stat,
};

pub use client::Client;
pub use connector::Connector;
pub use multi::{MultiReader, MultiWriter};
pub use request::{OneshotWatcher, StateWatcher};
pub use values::{CreateMode, CreateOptions, CreateSequence, SessionInfo};

/// An answer, or the reason why there is none.
pub type Result<T> = std::result::Result<T, Error>;
