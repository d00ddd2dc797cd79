//! Everything that is true of every Leasehold lock. Core knows no store and no network: a store implements
//! [`backend::Backend`], and core does the rest.
//!
//! In reading order: a [`Store`] makes a [`Lock`]; its acquire loop (`engine::acquire`) sends a
//! claim to the store and waits for notifications; the state of the claim is shared
//! (`engine::claim_state`), and validity is computed from it; the `engine::keeper` renews the claim
//! and ends it when it has run out; a [`Guard`] is its one owner, [`Held`] a view of it, [`Lost`]
//! its end.
//!
//! From the top: `api` has the types that users write and hold, `engine` drives claims, and `backend`
//! has the trait and the types that stores implement and answer with. None of them uses one above
//! it. `support` has tools that know nothing of locks.
//!
//! Each acquisition passes these steps, and each step is a file:
//!
//! 1. [`Lock::acquire`] returns a future that owns what it needs. Nothing happens before it is
//!    polled.
//! 2. The acquire loop makes a claim with an id of its own, and sends it through
//!    [`backend::Backend::claim`].
//! 3. The store answers: granted, waiting, or busy. A waiter sleeps until a notification, the poll
//!    interval or the deadline, and then claims *again with the same id*.
//! 4. Once granted, the keeper renews the lease every third of its TTL, and sees the end of
//!    validity on time.
//! 5. The [`Guard`] is released, dropped, or lost. A release that is not confirmed is retried in
//!    the background until the lease has run out.
//!
//! # What a user may rely on
//!
//! - Each future can be dropped at any await. The methods say what may have happened then, under
//!   *Cancel safety*.
//! - Durations are [`std::time::Duration`]; tokens are numbers up to `i64::MAX`; limits are in
//!   bytes of UTF-8.
//! - A builder never fails. A bad option is reported by the first request that uses it, as
//!   [`ErrorKind::Invalid`].
//! - No error, event or `Debug` shows a password or the id of a claim.
//!
//! Applications use the crate `leasehold`, which adds `connect` and the stores. Its module
//! `guarantees` says what each store promises under which faults.

mod api;
pub mod backend;
mod engine;
#[doc(hidden)]
pub mod support;

pub use api::acquire::Acquire;
pub use api::blocking;
pub use api::distributed_lock::DistributedLock;
pub use api::election::{Election, Leader, Leadership};
pub use api::fence::{FenceGate, Stale};
pub use api::guard::Guard;
pub use api::held::Held;
pub use api::lease::{Fenced, Lease};
pub use api::lock::Lock;
pub use api::multi::{MultiGuard, MultiLock};
pub use api::observer::Observer;
pub use api::once::{Attempt, Begun, MAX_KEEP, Once, OnceGuard, OnceOutcome, TryOnceOutcome};
pub use api::options::{DEFAULT_TTL, MAX_LABEL_BYTES, MAX_TTL, MAX_VALUE_BYTES, Options};
pub use api::owner::Owner;
pub use api::run::RunOutcome;
pub use api::rw_lock::RwLock;
pub use api::semaphore::Semaphore;
pub use api::store::Store;
pub use api::test_hold::TestHold;
pub use backend::completion::{Completion, Keep, MAX_RESULT_BYTES};
pub use backend::contention::Contention;
pub use backend::error::{Error, ErrorKind, Result};
pub use backend::guarantees::{Connections, Fairness, Fencing, Guarantees};
pub use backend::identity::StoreId;
pub use backend::loss::{Loss, Lost};
pub use backend::name::{MAX_NAME_BYTES, Name};
pub use backend::queue::{LockQueue, Participant};
pub use backend::token::FencingToken;
/// Internal: for `connect` and the command.
#[doc(hidden)]
pub use engine::patience::patiently;
