//! The client that the store is built on. It has connections and statements, and no notion of
//! locks.
//!
//! `link` is one connection, `secure` its TLS, and `lent` one that a pool of the program has lent,
//! in the state that `session` knows. `pool` has several connections and limits each request, and
//! `places` says if a runtime needs one. `request` is a statement with its parameters, and `answer` a row of what it returns. `listener` listens to notifications, and
//! `notify_queue` sends them. `identity` compares servers. `install` checks the server at the start, and installs the schema.
//!
//! It re-exports the crate [`tokio_postgres`] in the version that this store uses.

pub(crate) mod answer;
pub(crate) mod identity;
pub(crate) mod install;
pub(crate) mod lent;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod notify_queue;
pub(crate) mod places;
pub(crate) mod pool;
pub(crate) mod request;
#[cfg(feature = "tls-no-provider")]
mod secure;
pub(crate) mod session;

#[doc(no_inline)]
pub use tokio_postgres::*;
