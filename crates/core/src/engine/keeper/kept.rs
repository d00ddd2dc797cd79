//! The keeper's record of one claim, and the moment when the claim needs attention next.
//!
//! Two moments matter for each claim: when its renewal is due, and when its hold ends if no renewal
//! succeeds. The second one is watched also while a renewal hangs, so that a loss is seen in time.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::LeaseRef;
use crate::backend::clock::Moment;
use crate::backend::token::FencingToken;
use crate::engine::claim_state::{ClaimState, RenewalFacts};

pub(super) struct Kept {
    pub(super) state: Arc<ClaimState>,
    pub(super) is_hold: bool,
    pub(super) renewal: Renewing,
    /// The number of unanswered requests that renew it; `sent` is the moment of the latest one.
    pub(super) in_flight: u32,
    pub(super) sent: Moment,
    /// The store did not answer the latest request that renews it, or not in time.
    pub(super) unanswered: bool,
    /// The end of `min_hold`, for a hold whose guard has gone.
    pub(super) release_at: Moment,
    /// The store is being asked to let it lapse at `release_at`.
    pub(super) lapsing: bool,
    /// The moment of its entry in the agenda; from `joins` on it may be renewed together with
    /// others.
    pub(super) at: Moment,
    pub(super) joins: Moment,
    /// The moment when a third of its lease is left, or when it ends if that is earlier, as
    /// computed at its entry in the agenda.
    third_left: Moment,
}

/// Stands for no instant. An `Option` would be twice as large, for each hold.
pub(super) const NEVER: Moment = Moment::from_nanos(u64::MAX);

#[derive(Clone, Copy)]
pub(super) enum Renewing {
    /// It is renewed (again) at this moment, regardless of a request that is in flight.
    At(Moment),
    /// It has waited for a request since the first moment. At the second one a third of its lease
    /// is left.
    Due(Moment, Moment),
}

/// The leases to renew by one request, and for each the data that core needs when the answer comes.
pub(super) struct Batch {
    pub(super) leases: Vec<LeaseRef>,
    pub(super) items: Vec<BatchItem>,
}

/// One renewal of a request.
pub(super) struct BatchItem {
    pub(super) state: Arc<ClaimState>,
    pub(super) token: Option<FencingToken>,
    pub(super) ttl: Duration,
    /// The moment since which it has been due.
    pub(super) due_since: Moment,
}

impl Kept {
    pub(super) fn new(state: Arc<ClaimState>, renew_at: Moment) -> Kept {
        let renewal = Renewing::At(renew_at);
        Kept {
            state,
            is_hold: false,
            renewal,
            in_flight: 0,
            sent: Moment::from_nanos(0),
            unanswered: false,
            release_at: NEVER,
            lapsing: false,
            at: NEVER,
            joins: NEVER,
            third_left: NEVER,
        }
    }

    /// The moment when the claim needs attention. `moved` is the moment when the store last
    /// answered a request that renews.
    pub(super) fn comes_up(&mut self, seen: &RenewalFacts, moved: Option<Moment>) -> Moment {
        let ends = seen.ends_at().or(seen.given_back_at()).unwrap_or(NEVER);
        if let Renewing::At(at) = self.renewal {
            self.third_left = seen.third_left_at(at).min(ends);
        }
        let (asks, joins) = match self.renewal {
            // A hold that the store is asked to let lapse is renewed only when a third of its lease
            // is left, if the store has not answered by then.
            Renewing::At(at) if self.lapsing => (at.max(seen.third_left_at(at)), NEVER),
            Renewing::At(at) if self.in_flight > 0 => (at, NEVER),
            Renewing::At(at) => (at, at.before(seen.ttl / 6)),
            // If the store answers no renewal, it waits no longer for others.
            Renewing::Due(_, at) => (
                moved.map_or(at, |moved| at.max(moved + seen.ttl / 6)),
                NEVER,
            ),
        };
        self.joins = joins;
        asks.min(self.release_at).min(ends)
    }

    /// Makes it wait for a request from now on. Returns its key: the moment when a third of its
    /// lease is left.
    pub(super) fn make_due(&mut self, now: Moment) -> Moment {
        let since = if let Renewing::At(at) = self.renewal {
            at.min(now)
        } else {
            now
        };
        (self.renewal, self.joins) = (Renewing::Due(since, self.third_left), NEVER);
        self.third_left
    }

    /// The moment to look again at a claim that waits for a request: not later than it comes up.
    pub(super) fn waits_until(&self) -> Moment {
        self.third_left.min(self.release_at)
    }
}
