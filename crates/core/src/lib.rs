//! Everything that is true of every Leasehold lock. Core knows no store and no network: a store implements
//! [`seam::Backend`], and core does the rest.

mod admission;
mod backend;
mod bells;
mod claim;
mod clock;
mod error;
mod grant;
mod guarantees;
mod line;
mod loss;
mod name;
mod token;

pub use error::{Error, ErrorKind, Result};
pub use guarantees::{Fairness, Fencing, Guarantees};
pub use line::{Contention, Entry, Line};
pub use loss::{Loss, Lost};
pub use name::{MAX_NAME_BYTES, Name};
pub use token::FencingToken;

/// For authors of stores: the trait, what crosses it, and the rules they share.
pub mod seam {
    pub use crate::admission::{Admission, admit};
    pub use crate::backend::Backend;
    pub use crate::bells::Bells;
    pub use crate::claim::{Claim, ClaimId, Mode, Place, Queue, Tenure};
    pub use crate::clock::{Clock, Moment, VirtualClock};
    pub use crate::grant::{Claimed, Grant, Renewal, Validity, Waiting};
    pub use async_trait::async_trait;
}
