//! The client that the store is built on. It knows connections and statements, and no lock.
//!
//! `link` is one connection, `secure` its TLS, `pool` has several of them and limits each request, `request` is a statement with its
//! parameters, `bell` listens to notifications, `ringer` sends them, `install` looks at the server at the start, and installs the schema.
//!
//! Re-exports the crate [`tokio_postgres`] in the version that this store uses.

pub(crate) mod bell;
pub(crate) mod install;
pub(crate) mod link;
pub(crate) mod pool;
pub(crate) mod request;
pub(crate) mod ringer;
#[cfg(feature = "tls")]
mod secure;

#[doc(no_inline)]
pub use tokio_postgres::*;
