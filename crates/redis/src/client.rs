//! The parts that know no lock, beyond `link`.
//!
//! Re-exports the client crate `redis` in the version that this store uses: its types are in public signatures.

#[doc(no_inline)]
pub use redis::*;

pub(crate) mod nodes;
pub(crate) mod replicas;
