//! Withdrawing claims in the background, once their own request is answered.
//!
//! A release must not overtake its own claim: the store would find nothing to release, and then
//! execute the claim. A withdrawal therefore first waits for the request that is still in flight,
//! for one lease at most, because after that the store has ended the claim by itself.
//!
//! It is repeated until the store confirms it or the lease has run out. Giving up earlier would
//! leave the lock taken for the rest of the lease; going on longer would be pointless.
//!
//! A request is polled only in the runtime in which it was sent. It may contain timers and sockets
//! of that runtime, which panic or never wake up in another one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::backend::claim::{Claim, Place};
use crate::backend::clock::Clock;
use crate::backend::contract::Backend;
use crate::backend::error::Result;
use crate::backend::grant::{Claimed, ClaimedAll};
use crate::engine::backoff::Backoff;
use crate::engine::claim_state::ClaimState;
use crate::engine::events;

/// The time after which a runtime that has not begun to poll a request counts as not driven any
/// more.
const STALL: Duration = Duration::from_millis(500);

/// Claims of one request, to be withdrawn.
pub(crate) struct Release {
    pub(crate) claims: Vec<(Arc<ClaimState>, Option<Place>)>,
    /// A request for these claims that is still unanswered: a release never overtakes its own
    /// claim.
    pub(crate) in_flight: Option<InFlight>,
}

/// A request that claims. It may have timers and connections of the runtime in which it was sent, and is polled in no other:
/// timers panic once their runtime has ended.
pub(crate) struct InFlight {
    home: Option<Handle>,
    pub(crate) request: Pin<Box<dyn Future<Output = Result<Reply>> + Send>>,
}

impl InFlight {
    pub(crate) fn new(request: impl Future<Output = Result<Reply>> + Send + 'static) -> InFlight {
        InFlight {
            home: Handle::try_current().ok(),
            request: Box::pin(request),
        }
    }

    /// Waits for the answer, in whichever runtime this is called. Returns `None` if the request
    /// fails, or its own runtime ends or is not driven.
    async fn answer(self, clock: &Clock) -> Option<Reply> {
        let here = Handle::try_current().ok().map(|here| here.id());
        match self.home.filter(|home| Some(home.id()) != here) {
            None => self.request.await.ok(),
            Some(home) => {
                let mut there = JoinSet::new(); // aborted with this
                let (begins, begun) = oneshot::channel::<()>();
                let request = async {
                    drop(begins);
                    self.request.await
                };
                there.spawn_on(request, &home);
                tokio::select! {
                    biased;
                    _ = begun => {}
                    () = clock.sleep(STALL) => return None,
                }
                there.join_next().await?.ok()?.ok()
            }
        }
    }
}

/// The answer of the store to a request that claims.
pub(crate) enum Reply {
    One(Claimed),
    All(ClaimedAll),
}

impl Reply {
    /// The places of its claims now, in their order.
    fn places(self) -> Vec<Place> {
        match self {
            Reply::One(Claimed::Granted(grant)) => vec![grant.place],
            Reply::One(Claimed::Waiting(waiting)) => vec![waiting.place],
            Reply::All(ClaimedAll::Granted(grants)) => {
                grants.into_iter().map(|grant| grant.place).collect()
            }
            Reply::One(Claimed::Busy(_) | Claimed::Done(_)) | Reply::All(ClaimedAll::Busy(..)) => {
                Vec::new()
            }
        }
    }
}

impl Release {
    pub(crate) fn of<'a>(states: impl IntoIterator<Item = &'a Arc<ClaimState>>) -> Release {
        let claim = |state: &Arc<ClaimState>| (state.clone(), state.place());
        Release {
            claims: states.into_iter().map(claim).collect(),
            in_flight: None,
        }
    }
}

/// Waits for the request that is in flight, and then withdraws each of its claims. `sending` limits
/// the number of requests at once.
pub(crate) async fn withdraw(
    backend: &dyn Backend,
    clock: &Clock,
    sending: &Semaphore,
    release: Release,
    mut random: fastrand::Rng,
) {
    let Release {
        mut claims,
        in_flight,
    } = release;
    if let Some(in_flight) = in_flight {
        let longest = claims
            .iter()
            .map(|(state, _)| state.claim.ttl)
            .max()
            .unwrap_or_default();
        let reply = tokio::select! {
            biased;
            reply = in_flight.answer(clock) => reply,
            () = clock.sleep(longest) => None,
        };
        let places = reply.map(Reply::places).unwrap_or_default();
        claims
            .iter_mut()
            .zip(places)
            .for_each(|((_, at), place)| *at = Some(place));
    }
    let request = async |claim: &Claim, place: Option<&Place>| {
        let _turn = sending.acquire().await;
        backend.release(claim, place).await
    };
    let each = claims.iter().map(|(state, place)| {
        let request = || request(&state.claim, place.as_ref());
        give_back(clock, state, request, random.fork())
    });
    join_all(each).await;
}

/// Withdraws a claim; the request is repeated until it succeeds or the lease has run out.
async fn give_back<F>(
    clock: &Clock,
    state: &ClaimState,
    request: impl Fn() -> F,
    random: fastrand::Rng,
) where
    F: Future<Output = Result<()>>,
{
    let claim = &state.claim;
    let deadline = clock.now() + state.ttl();
    let mut backoff = Backoff::new(random);
    let mut told = false;
    loop {
        let answer = tokio::select! {
            biased;
            answer = request() => answer,
            // Thousands may wait here: to be late after a suspend does no harm.
            () = clock.coarse_sleep_until(deadline) => return events::release_given_up(claim),
        };
        match answer {
            Ok(()) => return events::released(claim),
            Err(e) if e.kind().is_final() => return events::release_refused(claim, &e),
            Err(e) if !std::mem::replace(&mut told, true) => events::release_unknown(claim, &e),
            Err(_) => {}
        }
        if clock.now() >= deadline {
            return events::release_given_up(claim);
        }
        clock.sleep(backoff.next()).await;
    }
}
