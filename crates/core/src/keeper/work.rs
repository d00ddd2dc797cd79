//! What the keeper does in the background, besides renewing: it withdraws claims, and asks the store to let holds lapse.

use std::sync::Arc;

use super::Keeper;
use crate::backoff::Backoff;
use crate::claim_state::ClaimState;
use crate::clock::Moment;
use crate::events;
use crate::release::{Release, withdraw};

/// It is kept until it is done, so that another runtime can go on with it.
pub(crate) enum Work {
    Withdraw(Release),
    /// A hold that was given back within its `min_hold`, which ends then.
    Lapse(Arc<ClaimState>, Moment),
}

impl Work {
    /// To be done now. A request that is still in flight goes with whoever does it first.
    pub(super) fn begin(&mut self) -> Work {
        match self {
            Work::Withdraw(Release { claims, in_flight }) => {
                Work::Withdraw(Release { claims: claims.clone(), in_flight: in_flight.take() })
            }
            Work::Lapse(state, at) => Work::Lapse(state.clone(), *at),
        }
    }

    pub(super) async fn done(self, keeper: &Keeper, random: fastrand::Rng) {
        match self {
            Work::Withdraw(release) => {
                withdraw(&*keeper.backend, &keeper.clock, &keeper.releasing, release, random).await;
            }
            Work::Lapse(state, at) => lapse(keeper, &state, at, random).await,
        }
    }
}

/// Asks until the store answers, or until the end of `min_hold`, when the hold is simply released.
async fn lapse(keeper: &Keeper, state: &Arc<ClaimState>, at: Moment, random: fastrand::Rng) {
    let mut backoff = Backoff::for_retries(random);
    while keeper.clock.now() < at && state.loss().is_none() {
        let answer = tokio::select! {
            biased;
            answer = keeper.ask_to_lapse(state, at) => answer,
            () = keeper.clock.sleep_until(at) => return,
        };
        match answer {
            Ok(()) => return keeper.has_lapsed(state),
            // It is renewed until then, as on a store that cannot do this.
            Err(e) if e.kind().is_final() => return keeper.outlives_nothing(state),
            Err(e) => events::release_unknown(&state.claim, &e),
        }
        keeper.clock.sleep(backoff.next()).await;
    }
}
