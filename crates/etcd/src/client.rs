//! The client that the store is built on. It knows endpoints, leases and keys, and no lock.
//!
//! `cluster` sends each request to one endpoint after the other and answers in bounded time.
//! `sessions` keeps one `session` (a lease) for each TTL, `keep_alive` is its stream of
//! keep-alives, and `liveness` verifies that a session and its keys live. `lease` is a lease that is
//! not renewed. `leased_key` creates keys under a session and surely removes them. `mirror` is a copy of the keys of a prefix, and
//! `mirrors` keeps such copies true by the one stream of `watch`. `single_flight` runs work once
//! that many tasks want done. `secure` is TLS, `checks` asks a member for its version and alarms at
//! the start, `members` finds the other members, and `reach` explains why no endpoint can be
//! connected to.
//!
//! Re-exports the crate [`etcd_client`] in the version that this store uses: its types are in
//! public signatures.

mod checks;
pub(crate) mod cluster;
pub(crate) mod identity;
mod keep_alive;
mod lease;
pub(crate) mod leased_key;
mod liveness;
mod members;
pub(crate) mod mirror;
pub(crate) mod mirrors;
pub(crate) mod reach;
#[cfg(feature = "tls-no-provider")]
pub(crate) mod secure;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod single_flight;
pub(crate) mod watch;

#[doc(no_inline)]
pub use etcd_client::*;
