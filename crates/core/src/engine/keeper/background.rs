//! The work in the background: the keeper withdraws claims, and asks the store to let holds lapse.
//!
//! No caller waits for this work, so it must end by itself: each task of it stops at the latest when
//! the lease that it is about has run out in the store.

use std::sync::Arc;

use super::Keeper;
use super::work::Work;
use crate::backend::clock::Moment;
use crate::engine::backoff::Backoff;
use crate::engine::claim_state::ClaimState;
use crate::engine::events;
use crate::engine::release::withdraw;

impl Work {
    pub(super) async fn done(self, keeper: &Keeper, random: fastrand::Rng) {
        match self {
            Work::Withdraw(release) => {
                withdraw(
                    &*keeper.backend,
                    &keeper.clock,
                    &keeper.releasing,
                    release,
                    random,
                )
                .await;
            }
            Work::Lapse(state, at) => lapse(keeper, &state, at, random).await,
            Work::Complete(state, completing) => {
                let backoff = Backoff::new(random);
                let backend = &*keeper.backend;
                let clock = &keeper.clock;
                let answer = completing.ask(backend, clock, &state.claim, backoff).await;
                keeper.has_completed(&state, &answer);
            }
        }
    }
}

/// Asks until the store answers, or until the end of `min_hold`, when the hold is simply released.
async fn lapse(keeper: &Keeper, state: &Arc<ClaimState>, at: Moment, random: fastrand::Rng) {
    let mut backoff = Backoff::new(random);
    let mut told = false;
    while keeper.clock.now() < at && state.loss().is_none() {
        let answer = tokio::select! {
            biased;
            answer = keeper.ask_to_lapse(state, at) => answer,
            () = keeper.clock.sleep_until(at) => return,
        };
        match answer {
            Ok(()) => return keeper.has_lapsed(state),
            // The hold is renewed until then, as on a store that cannot let it lapse.
            Err(e) if e.kind().is_final() => return keeper.outlives_nothing(state),
            Err(e) if !std::mem::replace(&mut told, true) => {
                events::release_unknown(&state.claim, &e);
            }
            Err(_) => {}
        }
        keeper.clock.sleep(backoff.next()).await;
    }
}
