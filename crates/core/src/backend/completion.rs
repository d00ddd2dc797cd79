//! Completions: records that the work of a name is done, for [`Once`](crate::Once).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::claim::Place;
use crate::backend::token::FencingToken;

/// The longest result of work that is done once, in bytes of UTF-8. A longer one is cut.
pub const MAX_RESULT_BYTES: usize = 4096;

/// The record that the work of a name is done.
///
/// A store writes it in the step that ends the hold of the client whose work has ended. Until its
/// keep has passed, or it is forgotten, no other client begins this work.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The fencing token of the hold under which the work was done.
    pub token: FencingToken,
    /// The label of the client that did it.
    pub label: Arc<str>,
    /// The time at which it was recorded, by the clock of the store.
    pub at: SystemTime,
    /// The time for which it still counted when it was read; `None` if it counts for ever.
    pub left: Option<Duration>,
    /// The number of the fire: see [`Claim::once`](crate::backend::Claim::once). It is 0 for work that is not numbered.
    pub fire: u64,
    /// The result that the work left: at most
    /// [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES), without NUL.
    pub result: Option<Arc<str>>,
    /// The result was longer, and only its beginning was recorded.
    pub is_cut: bool,
}

impl Completion {
    /// A completion of work that is not numbered and left no result, which counts for ever.
    pub fn new(token: FencingToken, label: impl Into<Arc<str>>, at: SystemTime) -> Completion {
        Completion {
            token,
            label: label.into(),
            at,
            left: None,
            fire: 0,
            result: None,
            is_cut: false,
        }
    }

    /// Returns whether it counts for a claim of this fire: the work of this fire, or of a later
    /// one, is done.
    pub const fn counts_for(&self, fire: u64) -> bool {
        self.fire >= fire
    }
}

/// The time for which a completion counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// From the completion on, for this time. A store that cannot end it exactly then ends it
    /// later, never sooner.
    For(Duration),
    /// Until it is forgotten.
    Forever,
}

/// A request to complete work: to record that it is done, and to end its hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Complete {
    /// The token of the hold under which the work was done.
    pub token: FencingToken,
    /// The place of that hold.
    pub place: Place,
    /// The time for which the completion counts.
    pub keep: Keep,
    /// The result that the work left: at most
    /// [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES), without NUL.
    pub result: Option<Arc<str>>,
    /// The result was longer, and this is its beginning.
    pub is_cut: bool,
}

impl Complete {
    /// A request without a result.
    pub fn new(token: FencingToken, place: Place, keep: Keep) -> Complete {
        Complete {
            token,
            place,
            keep,
            result: None,
            is_cut: false,
        }
    }
}

/// The answer of a store to a request to complete work.
#[derive(Debug)]
pub enum Completed {
    /// This claim has completed its work, now or by an earlier request.
    Done(Completion),
    /// This claim does not hold with this token, and has not completed its work: nothing was
    /// recorded.
    NotHeld,
}
