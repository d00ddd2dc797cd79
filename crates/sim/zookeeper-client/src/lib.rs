//! What the ZooKeeper store uses of the crate `zookeeper-client`, over the network of a simulated machine: a session on one connection.
//!
//! That crate connects by TCP alone, from a thread of its own, and reads the real clock. This one has its names and its plain types, and
//! does what it does, in tokio's time: it speaks ZooKeeper's protocol, sends each request at once and in its order, pings, gives up a
//! server that is silent, and closes the session when nobody has it any more. It connects once: the store uses no second connection of
//! a client.

mod client;
mod connector;
mod multi;
mod request;
mod serve;
mod values;
pub mod wire;

pub use zookeeper_client::{
    Acl, Acls, AuthId, Error, MultiReadResult, MultiWriteError, MultiWriteResult, Permission, SessionId, SessionState,
    Stat,
};

pub use client::Client;
pub use connector::Connector;
pub use multi::{MultiReader, MultiWriter};
pub use request::{OneshotWatcher, StateWatcher};
pub use values::{CreateMode, CreateOptions, CreateSequence, SessionInfo};

/// What was answered, or why nothing was.
pub type Result<T> = std::result::Result<T, Error>;
