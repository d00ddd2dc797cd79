//! One claim of this client, from just before its first request until its release is confirmed.

use std::sync::Arc;

use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};

use crate::claim::before::Before;
use crate::client::leased_key::LeasedKey;
use crate::client::mirrors::SharedMirror;
use crate::client::session::Session;
use crate::entry::Seen;

/// The folder in which its session's entries of one queue are named.
pub(crate) type Turns = Arc<SharedMirror<Seen>>;

#[derive(Clone, Debug)]
pub(crate) struct OwnClaim {
    pub(crate) id: ClaimId,
    pub(crate) key: Arc<LeasedKey>,
    /// The number of its key, which is used again once this one is gone.
    pub(crate) slot: usize,
    /// The mode that its first claim asked for.
    pub(crate) mode: Mode,
    /// The key's create_revision, 0 while there is none that is known.
    pub(crate) created: i64,
    /// A request that may create it was sent, and is not answered: also if its future was dropped.
    pub(crate) doubt: bool,
    /// By how much its number is greater than that.
    pub(crate) base: i64,
    /// How many stood before it when it came, if its own transaction counted them.
    pub(crate) ahead: Option<u32>,
    pub(crate) granted: bool,
    /// It is being released: changes of its key are not reported.
    pub(crate) releasing: bool,
    /// When it was last claimed or renewed.
    pub(crate) last_used: Moment,
    /// It lapses without being renewed (`release_after`), and has ended by then.
    pub(crate) lapses_at: Option<Moment>,
    /// Where it is named, if its entry takes turns.
    pub(crate) turns: Option<Turns>,
    /// What is watched for it, while it waits.
    pub(crate) watched: Option<Box<Watched>>,
}

/// What is watched for a claim that waits.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// Its queue.
    Queue {
        /// So that the mirror is kept.
        _mirror: Arc<SharedMirror<Seen>>,
    },
    /// One entry before it; and where its next claim is named, if that may take turns.
    Before { before: Before, _turns: Option<Turns> },
    /// Nothing else than whether it is named.
    Turn,
}

impl OwnClaim {
    /// A claim of which nothing was sent yet.
    pub(crate) fn new(claim: &Claim, key: Arc<LeasedKey>, slot: usize) -> OwnClaim {
        OwnClaim {
            id: claim.id,
            key,
            slot,
            mode: claim.mode,
            created: 0,
            base: 0,
            doubt: false,
            ahead: None,
            granted: false,
            releasing: false,
            last_used: Moment::now(),
            lapses_at: None,
            turns: None,
            watched: None,
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.key.session
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(self.key.path.clone())
    }

    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.session().verified_at().min(self.last_used), self.session().ttl)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::of_place(self.place(), self.number(), self.validity())
    }

    /// The number of its place, of which its tokens are made.
    pub(crate) fn number(&self) -> i64 {
        self.base.saturating_add(self.created)
    }

    /// From here on it is being released. Answers what was known of it.
    pub(crate) fn begin_release(&mut self) -> OwnClaim {
        if self.releasing {
            // Another release may be on its way when this one is confirmed, and the key's number is given back.
            self.session().close();
        }
        self.releasing = true;
        self.clone()
    }

    /// Its key has this create_revision; 0 if there is none (any more).
    pub(crate) fn set_created(&mut self, created: i64) {
        if self.created != created {
            (self.created, self.ahead, self.granted, self.turns) = (created, None, false, None);
        }
    }
}
