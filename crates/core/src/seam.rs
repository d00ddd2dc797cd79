//! For authors of stores: the trait, what crosses it, and the rules they share.

pub(crate) mod admission;
pub(crate) mod backend;
pub(crate) mod claim;
pub(crate) mod clock;
pub(crate) mod contention;
pub(crate) mod error;
pub(crate) mod grant;
pub(crate) mod guarantees;
pub(crate) mod loss;
pub(crate) mod name;
pub(crate) mod notifier;
pub(crate) mod queue;
pub(crate) mod token;

pub use admission::{Admission, admit, holding, same_permits};
pub use async_trait::async_trait;
pub use backend::Backend;
pub use claim::{Claim, ClaimId, ClaimRef, LeaseRef, Mode, Place, WaitPolicy};
pub use clock::{Clock, Moment, VirtualClock};
pub use grant::{Claimed, ClaimedAll, Grant, Renewal, Validity, Waiting};
pub use notifier::{Notification, Notifier, Subscription};
pub use token::{RAISED_AHEAD, place_of_token, raised_places, token_of_place};
