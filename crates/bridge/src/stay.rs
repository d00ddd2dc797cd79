//! One claim of ours in one of the two stores: what it has there, what is asked of it, and what its store says of it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::seam::{
    Backend, Claim, ClaimId, Grant, LeaseRef, Moment, Notification, Notifier, Place, Subscription, Validity,
};
use leasehold_core::{FencingToken, Loss};

use crate::children::Parent;
use crate::pair::Side;

/// A claim of ours in one of the two stores.
#[derive(Debug)]
pub(crate) struct Stay {
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    pub(crate) grant: Option<Held>,
    /// Until when it surely stands there, and by which TTL.
    pub(crate) until: Moment,
    pub(crate) ttl: Duration,
    /// The store has said that it is gone.
    pub(crate) lost: Option<Loss>,
    /// Something of it may be there.
    pub(crate) traces: bool,
    /// The latest request has no answer.
    pub(crate) unanswered: bool,
    /// The store has notified of it since the latest answer.
    pub(crate) notified: bool,
    /// An earlier one had none, and may arrive late.
    doubt: bool,
    requests: u64,
    /// The latest request that was answered by a grant.
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
    /// The first number that is not its own.
    pub(crate) fn end(self) -> u64 {
        self.token.get() + u64::from(self.turns)
    }
}

/// A request for a stay that is about to be sent.
pub(crate) struct Asked {
    pub(crate) claim: Claim,
    /// Which request of its stay it is.
    request: u64,
    /// Whether something may have been there before it.
    traces: bool,
}

/// What was left in a store and not confirmed as withdrawn.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) side: Side,
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    /// By then it has ended by itself.
    pub(crate) give_up_at: Moment,
}

impl Stay {
    pub(crate) fn new(
        parent: &Arc<Parent>,
        (side, store): (Side, &dyn Backend),
        claim: &Claim,
        upper: &Notifier,
    ) -> Stay {
        let mut claim = claim.clone();
        (claim.id, claim.floor) = (ClaimId::fresh(), None);
        let (id, parent, upper) = (claim.id, Arc::downgrade(parent), upper.clone());
        let heard = move |notification| heard(&parent, (side, id), &notification, &upper);
        let listens = store.notifier().map(|notifier| notifier.subscribe(id, heard));
        let (until, ttl) = (Moment::from_nanos(0), claim.ttl);
        let claim = Arc::new(claim);
        let (place, grant, lost) = (None, None, None);
        let (traces, unanswered, notified, doubt) = (false, false, false, false);
        let (requests, granted_by) = (0, 0);
        Stay {
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

    /// It is asked for now, with the mode, the policy and the label that its parent has now. A floor stays.
    pub(crate) fn asked(&mut self, claim: &Claim, floor: Option<FencingToken>) -> Asked {
        let traces = std::mem::replace(&mut self.traces, true);
        self.doubt |= std::mem::replace(&mut self.unanswered, true);
        self.requests += 1;
        self.notified = false;
        let mut asked = claim.clone();
        (asked.id, asked.floor) = (self.claim.id, floor.max(self.claim.floor));
        self.claim = Arc::new(asked.clone());
        Asked { claim: asked, request: self.requests, traces }
    }

    /// It was surely not executed: only what was there before may be there.
    pub(crate) fn not_executed(&mut self, asked: &Asked) {
        if self.requests == asked.request {
            (self.traces, self.unanswered) = (asked.traces, false);
        }
    }

    /// A try was refused: nothing is there, unless an earlier request arrives late.
    pub(crate) fn refused(&mut self) {
        (self.traces, self.unanswered) = (self.doubt, false);
    }

    /// It is granted, or may be by now.
    pub(crate) fn may_hold(&self) -> bool {
        self.grant.is_some() || self.unanswered || self.notified
    }

    /// It has a place. Not if a request that was sent later was granted: then this was said before.
    pub(crate) fn waits(&mut self, asked: &Asked, place: &Place) -> bool {
        let is_new = asked.request >= self.granted_by;
        if is_new {
            (self.grant, self.place) = (None, Some(place.clone()));
            (self.traces, self.unanswered) = (true, false);
        }
        is_new
    }

    /// Whether it has been raised since this was granted: tokens only rise.
    pub(crate) fn outgrew(&self, grant: &Grant) -> bool {
        self.grant.is_some_and(|held| held.token > grant.token)
    }

    pub(crate) fn granted_to(&mut self, asked: &Asked, grant: &Grant, sent: Moment) {
        self.granted_by = self.granted_by.max(asked.request);
        self.granted(grant, sent);
    }

    pub(crate) fn granted(&mut self, grant: &Grant, sent: Moment) {
        (self.traces, self.unanswered) = (true, false);
        (self.grant, self.place) = (Some(Held { token: grant.token, turns: grant.turns }), Some(grant.place.clone()));
        self.extended(grant.validity, sent);
    }

    /// An answer never makes it shorter.
    pub(crate) fn extended(&mut self, validity: Validity, sent: Moment) {
        (self.until, self.ttl) = (self.until.max(validity.until(sent)), validity.ttl());
    }

    /// What to ask its store to renew: with the mode and the label that the parent has now.
    pub(crate) fn lease(&self, now: &Claim) -> Option<LeaseRef> {
        let place = self.place.clone()?;
        let mut claim = self.claim.clone();
        if claim.mode != now.mode || claim.label != now.label {
            let changed = Arc::make_mut(&mut claim);
            (changed.mode, changed.label) = (now.mode, now.label.clone());
        }
        Some(LeaseRef::new(claim, place, self.grant.map(|held| held.token)))
    }
}

/// A store has said something of a stay. A grant of one store is no grant of the bridge: the parent is claimed again.
fn heard(parent: &Weak<Parent>, (side, id): (Side, ClaimId), notification: &Notification, upper: &Notifier) {
    let Some(parent) = parent.upgrade() else { return };
    match *notification {
        Notification::Lost(loss) => {
            let mine = parent.with(|stays| stays.current(side, id).map(|stay| stay.lost = Some(loss)));
            if mine.is_some() {
                upper.lost(parent.id, loss);
            }
        }
        Notification::Shortened(validity) => {
            // The validity names its instant, so this one does not count.
            let until = validity.until(Moment::from_nanos(u64::MAX));
            let mine = parent.with(|stays| stays.current(side, id).map(|stay| stay.until = stay.until.min(until)));
            if mine.is_some() {
                upper.shortened(parent.id, validity);
            }
        }
        _ => {
            parent.with(|stays| stays.current(side, id).map(|stay| stay.notified = true));
            upper.claim_again(parent.id);
        }
    }
}
