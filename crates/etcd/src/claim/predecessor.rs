//! The watch of a waiter far back in its queue: two mirrors of one key each, its own key and the
//! key of the one entry that keeps it out.
//!
//! A mirror of the whole queue costs each waiting client one event for each entry that comes or
//! goes. Two keys cost the same, however many clients wait.
//!
//! [`Predecessor::news`] decides in this order:
//! 1. The own key is not there: the place is gone, and the claim is sent again.
//! 2. The other entry is there in a mode that excludes the waiter: nothing is new.
//! 3. The other entry has ended, or has become shared for a waiter that shares. If it was the first
//!    of the queue, the claim is granted without a request. Otherwise the claim is sent again, and
//!    its answer names the next entry to watch.
//!
//! Why this is right:
//! * *The entries before a place only become fewer.* A later key has a greater create_revision, an
//!   entry never moves forward, and a mode changes only from exclusive to shared. An answer about
//!   the entries before a place therefore stays true, except that entries leave.
//! * *The answer of a claim names the entry to watch*: for an exclusive claim the nearest one
//!   before it, for a shared claim the nearest one that is not shared. That entry keeps the claim
//!   out until it ends or becomes shared, so no other entry has to be watched.
//! * *If that entry was the first of the queue* when the claim was answered, no other entry keeps
//!   the claim out. Its end is a grant, whatever ended it.
//! * *Otherwise its end proves nothing*, because it may have left from the middle of the queue.
//!   Only the answer of a new claim is a proof.
//! * *Each mirror counts only once it knows the revision in question.* A mirror that has not yet
//!   seen the entry come cannot tell that it has gone: keys are used again, and events may lag
//!   behind the answer of the claim. A deletion after the entry's create_revision is the deletion
//!   of that entry. After a broken stream both keys are read again.
//! * *A claim whose own key is not there is not granted.* It is sent again and goes to the end of
//!   the queue.
//!
//! The two mirrors may show different revisions. If an entry and its successor end together, the
//! successor may look granted for a moment. They end together in two cases. Either they have one
//! lease, which was then not renewed, and no validity is left. Or both were deleted by hand, and
//! the result is that of any hold deleted by hand, with the loss reported one message later.
//!
//! A waiter need not change between this watch and a mirror of the queue. Both are evaluated as
//! long as they exist, and each grants only what it proves by itself.

use std::sync::Arc;

use leasehold_core::backend::{Admission, Mode, admit};

use crate::client::mirrors::SharedMirror;
use crate::entry::QueueEntry;

/// The two mirrors of a waiter, and the entry that it waits for.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor {
    /// Its own key.
    pub(crate) own: Arc<SharedMirror<QueueEntry>>,
    /// The mirror of the key of the entry that keeps the claim out, or of the deletions of that
    /// key. The first deletion after the entry's create_revision is the deletion of the entry.
    pub(crate) other: Arc<SharedMirror<QueueEntry>>,
    /// The create_revision of the entry that keeps the claim out.
    pub(crate) created: i64,
    /// The entry was the first of the queue when the claim was answered.
    pub(crate) first: bool,
}

/// The news that the two mirrors give a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Nothing yet.
    None,
    /// It holds.
    Granted,
    /// The watched entry does not keep it out any more; others may.
    ClaimAgain,
    /// Its own entry is gone.
    Gone,
}

impl Predecessor {
    /// Returns the news for a waiter of this mode whose key has the create_revision `created`.
    pub(crate) fn news(&self, mode: Mode, created: i64) -> News {
        {
            let own = self.own.lock();
            if own.key(created).is_none() {
                return if own.knows(created) {
                    News::Gone
                } else {
                    News::None
                };
            }
        }
        let other = self.other.lock();
        let still = other.key(self.created).map(|key| key.value.0);
        match still {
            Some(other) if admit(&[other], mode) != Admission::In => News::None,
            None if !other.knows(self.created) => News::None,
            _ if self.first => News::Granted,
            _ => News::ClaimAgain,
        }
    }
}

#[cfg(test)]
mod tests;
