//! What knows no lock: servers, sessions, and nodes that live as long as a session.
//!
//! Sessions are opened by whoever comes first, one for each TTL in use, kept alive, proven to live by writes, and closed when
//! nobody needs them; whoever lives in one hears of that as its [`Tenant`].

mod connection;
mod keep_alive;
mod liveness;
mod node;
mod request;
mod session;
mod sessions;

pub(crate) use connection::Client;
pub(crate) use node::Node;
pub(crate) use request::{AT_ONCE, children, exists, found, read};
pub(crate) use session::{Session, Tenant};
pub(crate) use sessions::Sessions;
