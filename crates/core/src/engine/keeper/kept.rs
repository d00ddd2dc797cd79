//! What is kept of one claim, and when something must be done about it.
//!
//! Two times matter for each claim: when its renewal is due, and when its hold ends if no renewal
//! succeeds. The second one is watched even while the first one hangs, because that is how a loss
//! is seen in time.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::claim_state::{ClaimState, Seen};
use crate::seam::claim::LeaseRef;
use crate::seam::clock::Moment;
use crate::seam::token::FencingToken;

pub(super) struct Kept {
    pub(super) state: Arc<ClaimState>,
    pub(super) is_hold: bool,
    pub(super) renewal: Renewing,
    /// How many requests that ask for it are unanswered, and when the latest was sent.
    pub(super) in_flight: u32,
    pub(super) sent: Moment,
    /// The end of `min_hold`, for a hold whose guard has gone.
    pub(super) release_at: Moment,
    /// The store is being asked to let it lapse then.
    pub(super) lapsing: bool,
    /// Its entry in the agenda, and from when on it may be renewed together with others.
    pub(super) at: Moment,
    pub(super) joins: Moment,
    /// When a third of its lease is left, or it ends before, as it was when it was entered there.
    third_left: Moment,
}

/// In place of an instant: there is none. An `Option` would be twice as large, for each hold.
pub(super) const NEVER: Moment = Moment::from_nanos(u64::MAX);

#[derive(Clone, Copy)]
pub(super) enum Renewing {
    /// When to renew it (again), whatever becomes of a request that is in flight.
    At(Moment),
    /// It waits for a request since the first moment. At the second a third of its lease is left.
    Due(Moment, Moment),
}

/// What is to be renewed by one request, and what of it core needs when the answer comes.
pub(super) struct Batch {
    pub(super) leases: Vec<LeaseRef>,
    pub(super) items: Vec<BatchItem>,
}

/// One renewal of a request.
pub(super) struct BatchItem {
    pub(super) state: Arc<ClaimState>,
    pub(super) token: Option<FencingToken>,
    pub(super) ttl: Duration,
    /// Since when it was to be sent.
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
            release_at: NEVER,
            lapsing: false,
            at: NEVER,
            joins: NEVER,
            third_left: NEVER,
        }
    }

    /// When something must be done about it. `moved`: when the store last answered a request that renews.
    pub(super) fn comes_up(&mut self, seen: &Seen, moved: Option<Moment>) -> Moment {
        let ends = seen.ends_at().unwrap_or(NEVER);
        if let Renewing::At(at) = self.renewal {
            self.third_left = seen.third_left_at(at).min(ends);
        }
        let (asks, joins) = match self.renewal {
            // What is to lapse soon is renewed only if the store does not answer that.
            Renewing::At(at) if self.lapsing => (at.max(seen.third_left_at(at)), NEVER),
            Renewing::At(at) if self.in_flight > 0 => (at, NEVER),
            Renewing::At(at) => (at, at.before(seen.ttl / 6)),
            // If nothing moves it waits no longer for others.
            Renewing::Due(_, at) => (moved.map_or(at, |moved| at.max(moved + seen.ttl / 6)), NEVER),
        };
        self.joins = joins;
        asks.min(self.release_at).min(ends)
    }

    /// It waits for a request from now on: under which key, by when a third of its lease is left.
    pub(super) fn make_due(&mut self, now: Moment) -> Moment {
        let since = if let Renewing::At(at) = self.renewal { at.min(now) } else { now };
        (self.renewal, self.joins) = (Renewing::Due(since, self.third_left), NEVER);
        self.third_left
    }

    /// When to look again at one that waits for a request: not later than it comes up.
    pub(super) fn waits_until(&self) -> Moment {
        self.third_left.min(self.release_at)
    }
}
