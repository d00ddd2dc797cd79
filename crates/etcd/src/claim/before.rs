//! A waiter far back in its queue: it watches the one entry that keeps it out, and its own, and no other.
//!
//! A mirror of the whole queue costs each client that waits an event for each entry that comes or goes. Two keys cost the
//! same however many wait. What they prove, and when:
//! * *what is before a place only gets less.* A later key has a greater create_revision, an entry never goes forward, and its mode
//!   never changes but from exclusive to shared. So what an answer has said of the entries before a place stays true, or
//!   they are gone;
//! * *a claim's answer names the entry to watch*: for an exclusive claim the nearest before it, for a shared one the nearest that is
//!   not shared. The claim is kept out at least until that one ends, or becomes shared. So nothing else has to be seen;
//! * *if it was the first of the queue* when the claim was answered, nothing else keeps the claim out: its end is a
//!   grant, whatever ended it, and no request is sent;
//! * *otherwise its end proves nothing*: it may have left from the middle. Then the claim is sent again. The answer of a
//!   claim is the proof, and it names the next entry to watch;
//! * *the mirrors of both keys stand before they are believed.* One that has not seen the entry come yet cannot say that it has gone:
//!   keys are used again, and events may lag behind the answer of the claim. A deletion after its create_revision is that of
//!   the entry. After a stream that broke both are read anew;
//! * *a claim whose own key is not there is not granted.* It is sent again, and goes to the end of the queue.
//!
//! The two mirrors are not of one revision. An entry and its successor that end together may look for a moment as if the successor
//! were let in. They end together if they have one lease, which then was not renewed, and no validity is left; or if both were deleted
//! by hand, which is what it looks like: a hold that was deleted by hand, and hears of it a message later.
//!
//! Nobody has to leave this watch for a mirror of the queue, or the other way round: both are looked at as long as they
//! are there, and each grants only what it proves by itself.

use std::sync::Arc;

use leasehold_core::seam::{Admission, Mode, admit};

use crate::client::mirrors::SharedMirror;
use crate::entry::Seen;

/// What the waiter watches.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    /// Its own key.
    pub(crate) own: Arc<SharedMirror<Seen>>,
    /// The key of the entry that keeps it out, or the end of that one. Which was deleted first after its create_revision.
    pub(crate) other: Arc<SharedMirror<Seen>>,
    /// The create_revision of that entry.
    pub(crate) created: i64,
    /// That entry was the first of the queue.
    pub(crate) first: bool,
}

/// What the two keys say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Nothing yet.
    None,
    /// It holds.
    Granted,
    /// The entry that was watched keeps it out no more; others may.
    ClaimAgain,
    /// Its own entry is gone.
    Gone,
}

impl Before {
    /// What is new for a waiter of this mode, whose key was created then.
    pub(crate) fn news(&self, mode: Mode, created: i64) -> News {
        {
            let own = self.own.lock();
            if own.key(created).is_none() {
                return if own.knows(created) { News::Gone } else { News::None };
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
