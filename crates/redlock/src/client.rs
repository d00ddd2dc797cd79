//! What knows no lock, beyond `leasehold-redis-client`: several servers asked side by side.
//!
//! Re-exports the client crate `redis` in the version that this store uses: its types are in public signatures.

#[doc(no_inline)]
pub use redis::*;

pub(crate) mod nodes;
