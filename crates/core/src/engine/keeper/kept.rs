//! What is kept of one claim, and when something must be done about it.
//!
//! Two times matter for each claim: when its renewal is due, and when its hold ends if no renewal
//! succeeds. The second one is watched even while the first one hangs, because that is how a loss
//! is seen in time.

use std::sync::Arc;

use crate::engine::claim_state::ClaimState;
use crate::seam::claim::LeaseRef;
use crate::seam::clock::Moment;

pub(super) struct Kept {
    pub(super) state: Arc<ClaimState>,
    pub(super) is_hold: bool,
    pub(super) renewal: Renewing,
    /// How many requests that ask for it are unanswered, and when the latest was sent.
    pub(super) in_flight: usize,
    pub(super) sent: Option<Moment>,
    /// The end of `min_hold`, for a hold whose guard has gone.
    pub(super) release_at: Option<Moment>,
    /// The store is being asked to let it lapse then.
    pub(super) lapsing: bool,
    /// Its entries in the agenda and among the renewals that may join others.
    pub(super) at: Option<Moment>,
    pub(super) joins: Option<Moment>,
}

#[derive(Clone, Copy)]
pub(super) enum Renewing {
    /// When to renew it (again), whatever becomes of a request that is in flight.
    At(Moment),
    /// It waits for a request since the first moment. At the second a third of its lease is left.
    Due(Moment, Moment),
}

/// One renewal of a request.
pub(super) struct BatchItem {
    pub(super) state: Arc<ClaimState>,
    pub(super) lease: LeaseRef,
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
            sent: None,
            release_at: None,
            lapsing: false,
            at: None,
            joins: None,
        }
    }

    /// When a third of its lease is left that was asked for at `asked`.
    pub(super) fn third_left_at(&self, asked: Moment) -> Moment {
        self.state.lease_ends_at(asked).before(self.state.ttl() / 3)
    }
}
