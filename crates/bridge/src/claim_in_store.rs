//! A part: one claim of the bridge in one of the two stores, with its requests, its answers and its
//! notifications.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, ClaimId, Grant, LeaseRef, Moment, Notification, Notifier, Place, Subscription,
    Validity,
};
use leasehold_core::{FencingToken, Loss};

use crate::children::Parent;
use crate::pair::Side;

/// A claim of the bridge in one of the two stores.
#[derive(Debug)]
pub(crate) struct ClaimInStore {
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    pub(crate) grant: Option<Held>,
    /// The moment until which its place surely lasts, and the TTL of that lease.
    pub(crate) until: Moment,
    pub(crate) ttl: Duration,
    /// The loss that the store has reported.
    pub(crate) lost: Option<Loss>,
    /// The store may have something of it.
    pub(crate) traces: bool,
    /// The latest request has no answer.
    pub(crate) unanswered: bool,
    /// The store has sent a notification about it since the latest request.
    pub(crate) notified: bool,
    /// An earlier request has no answer, and may arrive late.
    doubt: bool,
    requests: u64,
    /// The number of the latest request that was answered by a grant.
    granted_by: u64,
    pub(crate) listens: Option<Subscription>,
}

/// The tokens of a grant in one store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) token: FencingToken,
    pub(crate) turns: u32,
}

impl Held {
    /// The first number after its tokens.
    pub(crate) fn end(self) -> u64 {
        self.token.get() + u64::from(self.turns)
    }
}

/// A request for a part that is about to be sent.
pub(crate) struct Asked {
    pub(crate) claim: Claim,
    /// The number of this request in its part.
    request: u64,
    /// The store may have had something of the part before this request.
    traces: bool,
}

/// A former part that may still be in a store, because its withdrawal was not confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) side: Side,
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    /// The moment by which it has ended by itself.
    pub(crate) give_up_at: Moment,
}

impl ClaimInStore {
    pub(crate) fn new(
        parent: &Arc<Parent>,
        (side, store): (Side, &dyn Backend),
        claim: &Claim,
        upper: &Notifier,
    ) -> ClaimInStore {
        let mut claim = claim.clone();
        (claim.id, claim.floor, claim.is_part) = (ClaimId::fresh(), None, true);
        let id = claim.id;
        let parent = Arc::downgrade(parent);
        let upper = upper.clone();
        let heard = move |notification| heard(&parent, (side, id), &notification, &upper);
        let listens = store
            .notifier()
            .map(|notifier| notifier.subscribe(id, heard));
        let until = Moment::from_nanos(0);
        let ttl = claim.ttl;
        let claim = Arc::new(claim);
        let place = None;
        let grant = None;
        let lost = None;
        let traces = false;
        let unanswered = false;
        let notified = false;
        let doubt = false;
        let requests = 0;
        let granted_by = 0;
        ClaimInStore {
            claim,
            place,
            grant,
            until,
            ttl,
            lost,
            traces,
            unanswered,
            notified,
            doubt,
            requests,
            granted_by,
            listens,
        }
    }

    /// Makes the next request of this part, with the mode, the policy and the label that its parent
    /// has now. The part keeps its floor if the new one is not greater.
    pub(crate) fn asked(&mut self, claim: &Claim, floor: Option<FencingToken>) -> Asked {
        let traces = std::mem::replace(&mut self.traces, true);
        self.doubt |= std::mem::replace(&mut self.unanswered, true);
        self.requests += 1;
        self.notified = false;
        let mut asked = claim.clone();
        (asked.id, asked.is_part) = (self.claim.id, true);
        asked.floor = floor.max(self.claim.floor);
        self.claim = Arc::new(asked.clone());
        Asked {
            claim: asked,
            request: self.requests,
            traces,
        }
    }

    /// Records that a request was surely not executed: the store has only what it had before.
    pub(crate) fn not_executed(&mut self, asked: &Asked) {
        if self.requests == asked.request {
            (self.traces, self.unanswered) = (asked.traces, false);
        }
    }

    /// Records that a try was refused: the store has nothing, unless an earlier request arrives
    /// late.
    pub(crate) fn refused(&mut self) {
        (self.traces, self.unanswered) = (self.doubt, false);
    }

    /// Returns whether the part is granted, or may be by now.
    pub(crate) fn may_hold(&self) -> bool {
        self.grant.is_some() || self.unanswered || self.notified
    }

    /// Records that the part waits at this place. Returns false, and changes nothing, if a later
    /// request was granted: this answer is older then.
    pub(crate) fn waits(&mut self, asked: &Asked, place: &Place) -> bool {
        let is_new = asked.request >= self.granted_by;
        if is_new {
            (self.grant, self.place) = (None, Some(place.clone()));
            (self.traces, self.unanswered) = (true, false);
        }
        is_new
    }

    /// Returns whether the part's token has been raised since this grant: tokens only rise.
    pub(crate) fn outgrew(&self, grant: &Grant) -> bool {
        self.grant.is_some_and(|held| held.token > grant.token)
    }

    pub(crate) fn granted_to(&mut self, asked: &Asked, grant: &Grant, sent: Moment) {
        self.granted_by = self.granted_by.max(asked.request);
        self.granted(grant, sent);
    }

    pub(crate) fn granted(&mut self, grant: &Grant, sent: Moment) {
        (self.traces, self.unanswered) = (true, false);
        (self.grant, self.place) = (
            Some(Held {
                token: grant.token,
                turns: grant.turns,
            }),
            Some(grant.place.clone()),
        );
        self.extended(grant.validity, sent);
    }

    /// Records the lease of an answer, which never makes the part shorter.
    pub(crate) fn extended(&mut self, validity: Validity, sent: Moment) {
        (self.until, self.ttl) = (self.until.max(validity.until(sent)), validity.ttl());
    }

    /// The lease for its store to renew, with the mode and the label that the parent has now;
    /// `None` without a place.
    pub(crate) fn lease(&self, now: &Claim) -> Option<LeaseRef> {
        let place = self.place.clone()?;
        let mut claim = self.claim.clone();
        if claim.mode != now.mode || claim.label != now.label {
            let changed = Arc::make_mut(&mut claim);
            (changed.mode, changed.label) = (now.mode, now.label.clone());
        }
        Some(LeaseRef::new(
            claim,
            place,
            self.grant.map(|held| held.token),
        ))
    }
}

/// Handles a notification of a store about a part. A grant of one store is no grant of the bridge,
/// so the parent is claimed again.
fn heard(
    parent: &Weak<Parent>,
    (side, id): (Side, ClaimId),
    notification: &Notification,
    upper: &Notifier,
) {
    let Some(parent) = parent.upgrade() else {
        return;
    };
    match *notification {
        Notification::Lost(loss) => {
            let mine =
                parent.with(|parts| parts.current(side, id).map(|part| part.lost = Some(loss)));
            if mine.is_some() {
                upper.lost(parent.id, loss);
            }
        }
        Notification::Shortened(validity) => {
            // This validity names the moment of its end, so the moment that is given here does not
            // matter.
            let until = validity.until(Moment::from_nanos(u64::MAX));
            let mine = parent.with(|parts| {
                parts
                    .current(side, id)
                    .map(|part| part.until = part.until.min(until))
            });
            if mine.is_some() {
                upper.shortened(parent.id, validity);
            }
        }
        _ => {
            parent.with(|parts| parts.current(side, id).map(|part| part.notified = true));
            upper.claim_again(parent.id);
        }
    }
}
