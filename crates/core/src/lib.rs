//! Everything that is true of every Leasehold lock. Core knows no store and no network: a store implements
//! [`seam::Backend`], and core does the rest.
//!
//! In reading order: a [`Store`] makes a [`Lock`]; its acquire loop (`acquire`) sends a claim through the seam and waits
//! for notifications; where the claim stands is one shared truth (`state`), from which validity is computed; the `keeper`
//! renews it and says when it has run out; a [`Guard`] is its one owner, [`Held`] a look at it, [`Lost`] its end.

mod acquire;
mod acquiring;
mod acquisition;
mod address;
mod admission;
mod backend;
mod backoff;
pub mod blocking;
mod claim;
mod claim_state;
mod client;
mod clock;
mod concurrency_limit;
mod contention;
mod election;
mod error;
mod events;
mod fence;
mod grant;
mod guarantees;
mod guard;
mod held;
mod hold;
mod keeper;
mod lease;
mod local_queue;
mod lock;
mod loss;
mod multi;
mod name;
mod notifier;
mod observer;
mod options;
mod owner;
mod queue;
mod release;
mod rw_lock;
mod scope;
mod semaphore;
mod store;
mod sync;
mod system;
mod thread;
mod token;
mod wait;

pub use acquire::Acquire;
pub use contention::Contention;
pub use election::{Election, Leader, Leadership};
pub use error::{Error, ErrorKind, Result};
pub use fence::{FenceGate, Stale};
pub use guarantees::{Fairness, Fencing, Guarantees};
pub use guard::Guard;
pub use held::Held;
pub use lease::{Fenced, Lease};
pub use lock::{DistributedLock, Lock, RunOutcome};
pub use loss::{Loss, Lost};
pub use multi::{MultiGuard, MultiLock};
pub use name::{MAX_NAME_BYTES, Name};
pub use observer::Observer;
pub use options::{DEFAULT_TTL, MAX_LABEL_BYTES, MAX_TTL, MAX_VALUE_BYTES, Options};
pub use owner::Owner;
pub use queue::{LockQueue, Participant};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use store::Store;
pub use token::FencingToken;

/// For authors of stores: the trait, what crosses it, and the rules they share.
pub mod seam {
    pub use crate::address::{Address, Host, escape, unescape};
    pub use crate::admission::{Admission, admit, holding, same_permits};
    pub use crate::backend::Backend;
    pub use crate::claim::{Claim, ClaimId, LeaseRef, Mode, Place, WaitPolicy};
    pub use crate::clock::{Clock, Moment, VirtualClock};
    pub use crate::grant::{Claimed, ClaimedAll, Grant, Renewal, Validity, Waiting};
    pub use crate::notifier::{Notifier, Subscription};
    pub use crate::sync::locked;
    pub use crate::token::{place_of_token, token_of_place};
    pub use async_trait::async_trait;
}
