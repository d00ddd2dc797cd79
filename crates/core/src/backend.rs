//! For authors of stores: the trait, the types of its calls, the rules that stores share, and the
//! tools that a store needs.
//!
//! - Names that may contain any byte (S8): [`escape`] and [`unescape`].
//! - Work and connections that outlive a runtime of the program: [`Background`], [`Signal`] and
//!   [`Home`].

pub(crate) mod admission;
pub(crate) mod claim;
pub(crate) mod clock;
pub(crate) mod completion;
pub(crate) mod completions;
pub(crate) mod contention;
pub(crate) mod contract;
pub(crate) mod error;
pub(crate) mod grant;
pub(crate) mod guarantees;
pub(crate) mod identity;
pub(crate) mod loss;
pub(crate) mod name;
pub(crate) mod notifier;
pub(crate) mod queue;
pub(crate) mod token;
pub(crate) mod token_floor;

pub use admission::{Admission, admit, holding, same_permits};
pub use async_trait::async_trait;
pub use claim::{Claim, ClaimId, ClaimRef, LeaseRef, Mode, Place, WaitPolicy};
pub use clock::{Clock, Moment, VirtualClock};
pub use completion::{Complete, Completed};
pub use completions::Completions;
pub use contract::Backend;
pub use grant::{Claimed, ClaimedAll, Grant, Renewal, Validity, Waiting};
pub use identity::Identity;
pub use notifier::{Notification, Notifier, Subscription};
pub use token::{RAISED_AHEAD, place_of_token, raised_places, token_of_place};
pub use token_floor::{Raises, TokenFloor};

pub use crate::support::{Background, Home, Signal, escape, unescape};
