//! What is true of no lock: addresses, threads, mutexes.

pub(crate) mod address;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod thread;
