//! What is left to the background, besides renewing.
//!
//! Background work is kept in the registry until it is done, so that another runtime can go on with
//! it. A request that is in flight goes with the task that does it first, because it can be polled
//! only there.

use std::sync::Arc;

use crate::engine::claim_state::ClaimState;
use crate::engine::release::Release;
use crate::seam::clock::Moment;

/// It is kept until it is done, so that another runtime can go on with it.
pub(crate) enum Work {
    Withdraw(Release),
    /// A hold that was given back within its `min_hold`, which ends then.
    Lapse(Arc<ClaimState>, Moment),
}

impl Work {
    /// To be done now. A request that is still in flight goes with the first task that does it.
    pub(super) fn begin(&mut self) -> Work {
        match self {
            Work::Withdraw(Release { claims, in_flight }) => {
                Work::Withdraw(Release { claims: claims.clone(), in_flight: in_flight.take() })
            }
            Work::Lapse(state, at) => Work::Lapse(state.clone(), *at),
        }
    }
}
