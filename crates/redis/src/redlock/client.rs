//! The parts that know no lock, beyond `link`: several servers are asked side by
//! side.
//!
//! Re-exports the client crate `redis` in the version that this store uses: its types are in public signatures.

#[doc(no_inline)]
pub use redis::*;

pub(crate) mod list;
pub(crate) mod nodes;
