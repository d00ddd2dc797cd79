//! The state of one claim of this client: its key under a session's lease, the create_revision of
//! that key, and what is watched while it waits.
//!
//! A record exists from just before the claim's first request until its release is confirmed.
//! `created` is 0 until an answer has shown the key. `doubt` is true from the moment at which a
//! request that may create the key is sent, until an answer settles it, so that a release also
//! removes a key of which this client never heard. Once `releasing` is true, the record only waits
//! for the confirmation.

use std::sync::Arc;

use leasehold_core::backend::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};

use crate::claim::predecessor::Predecessor;
use crate::client::leased_key::LeasedKey;
use crate::client::mirrors::SharedMirror;
use crate::client::session::Session;
use crate::entry::QueueEntry;

/// The mirror of the folder with the turn keys of one session for one queue (see `claim/turns`).
pub(crate) type TurnKeys = Arc<SharedMirror<QueueEntry>>;

#[derive(Clone, Debug)]
pub(crate) struct OwnClaim {
    pub(crate) id: ClaimId,
    pub(crate) key: Arc<LeasedKey>,
    /// The number in the name of its key; it is used again once this claim is gone.
    pub(crate) slot: usize,
    /// The mode that its first claim asked for.
    pub(crate) mode: Mode,
    /// The create_revision of the key; 0 while none is known.
    pub(crate) created: i64,
    /// A request that may create the key was sent and not answered, even if its future was dropped.
    pub(crate) doubt: bool,
    /// The difference between the place's number and `created` (see `fence/raise`).
    pub(crate) base: i64,
    /// The number of entries before it when it came, if its own transaction counted them.
    pub(crate) ahead: Option<u32>,
    pub(crate) granted: bool,
    /// It is being released: changes of its key are not reported any more.
    pub(crate) releasing: bool,
    /// The time at which it was last claimed or renewed.
    pub(crate) last_used: Moment,
    /// The time by which it has surely ended, if it is left to lapse without renewals
    /// (`release_after`).
    pub(crate) lapses_at: Option<Moment>,
    /// The mirror of the folder in which a turn key names it, if its entry takes turns.
    pub(crate) turns: Option<TurnKeys>,
    /// Only for a claim for work that is done once.
    pub(crate) once: Option<Box<WaitsOnce>>,
    /// The watch of a claim that waits; `None` for a claim that holds.
    pub(crate) watched: Option<Box<Watched>>,
}

/// The watch of a claim that waits.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// A mirror of its whole queue.
    Queue {
        /// Held so that the mirror is kept.
        _mirror: Arc<SharedMirror<QueueEntry>>,
    },
    /// One entry before it; and the folder of turn keys, so that the client's next claim may take
    /// turns.
    Predecessor {
        before: Predecessor,
        _turns: Option<TurnKeys>,
    },
    /// Only the folder of turn keys: it waits to be named.
    Turn,
}

/// The part of a claim that is for work that is done once.
#[derive(Clone, Debug)]
pub(crate) struct WaitsOnce {
    /// The number of the fire.
    pub(crate) fire: u64,
    /// The mirror of the completion's key, while the claim waits.
    pub(crate) completion: Option<Arc<SharedMirror<QueueEntry>>>,
}

impl OwnClaim {
    /// Creates the record of a claim of which nothing was sent yet.
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
            once: claim.once.map(|fire| {
                Box::new(WaitsOnce {
                    fire,
                    completion: None,
                })
            }),
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
        Validity::since(
            self.session().verified_at().min(self.last_used),
            self.session().ttl,
        )
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::of_place(self.place(), self.number(), self.validity())
    }

    /// The number of its place, from which its tokens are made.
    pub(crate) fn number(&self) -> i64 {
        self.base.saturating_add(self.created)
    }

    /// Marks it as being released and returns its state.
    pub(crate) fn begin_release(&mut self) -> OwnClaim {
        if self.releasing {
            // Another release may still be on its way when this one is confirmed and the key's
            // number is given back.
            self.session().close();
        }
        self.releasing = true;
        self.clone()
    }

    /// Records the create_revision of its key; 0 if there is no key (any more).
    pub(crate) fn set_created(&mut self, created: i64) {
        if self.created != created {
            (self.created, self.ahead, self.granted, self.turns) = (created, None, false, None);
        }
    }
}
