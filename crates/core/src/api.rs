//! The public API: stores, locks and their options, guards.

pub(crate) mod acquire;
pub mod blocking;
pub(crate) mod distributed_lock;
pub(crate) mod election;
pub(crate) mod fence;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod observer;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod owner;
pub(crate) mod run;
pub(crate) mod rw_lock;
pub(crate) mod scope;
pub(crate) mod semaphore;
pub(crate) mod store;
pub(crate) mod test_hold;
