//! What a scripted store was asked, and when.

use std::time::Duration;

use leasehold_core::backend::{ClaimId, Moment, Place};
use leasehold_core::{FencingToken, Name};
use tokio::sync::watch;

/// What a store was asked, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Claim(ClaimId),
    /// The claim's answer was made.
    Answered(ClaimId),
    /// Several at once.
    ClaimAll(Vec<ClaimId>),
    AnsweredAll,
    Renew(Vec<ClaimId>),
    Release(ClaimId, Option<Place>),
    /// It is to end by itself so long from then.
    Lapse(ClaimId, Duration),
    /// The work under this token is done.
    Complete(ClaimId, FencingToken),
    /// Has a transaction recorded it?
    Recorded(ClaimId, FencingToken),
    Evict(FencingToken),
    Inspect(Name),
    Close,
    /// The last owner of the backend has gone.
    Dropped,
}

/// The diary of a store, which outlives it.
#[derive(Clone)]
pub(crate) struct Log(pub(super) watch::Sender<Vec<(Moment, Call)>>);

impl Log {
    pub(crate) fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.0
            .borrow()
            .iter()
            .filter(|(_, call)| which(call))
            .count()
    }

    pub(crate) fn claims(&self) -> usize {
        self.count(|call| matches!(call, Call::Claim(_)))
    }

    /// The id of the first claim.
    pub(crate) fn first_id(&self) -> ClaimId {
        let Some(Call::Claim(id)) = self.calls().into_iter().next() else {
            panic!("{:?}", self.calls())
        };
        id
    }

    /// The requests for several names: the ids in each.
    pub(crate) fn joint_claims(&self) -> Vec<Vec<ClaimId>> {
        let party = |call| {
            if let Call::ClaimAll(ids) = call {
                Some(ids)
            } else {
                None
            }
        };
        self.calls().into_iter().filter_map(party).collect()
    }

    pub(crate) fn renewals(&self) -> usize {
        self.count(|call| matches!(call, Call::Renew(_)))
    }

    pub(crate) fn releases(&self) -> usize {
        self.count(|call| matches!(call, Call::Release(..)))
    }

    /// With which rests holds were to end by themselves.
    pub(crate) fn lapses(&self) -> Vec<Duration> {
        let rest = |call| {
            if let Call::Lapse(_, rest) = call {
                Some(rest)
            } else {
                None
            }
        };
        self.calls().into_iter().filter_map(rest).collect()
    }

    pub(crate) fn completions(&self) -> usize {
        self.count(|call| matches!(call, Call::Complete(..)))
    }

    pub(crate) fn inspects(&self) -> usize {
        self.count(|call| matches!(call, Call::Inspect(_)))
    }

    pub(crate) fn dropped(&self) -> usize {
        self.count(|call| *call == Call::Dropped)
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.0
            .borrow()
            .iter()
            .map(|(_, call)| call.clone())
            .collect()
    }

    /// When each batch of renewals was sent, and what was in it.
    pub(crate) fn batches(&self) -> Vec<(Moment, Vec<ClaimId>)> {
        let all = self.0.borrow();
        all.iter()
            .filter_map(|(at, c)| {
                if let Call::Renew(ids) = c {
                    Some((*at, ids.clone()))
                } else {
                    None
                }
            })
            .collect()
    }

    /// When each of these was written.
    pub(crate) fn instants(&self, which: impl Fn(&Call) -> bool) -> Vec<Moment> {
        self.0
            .borrow()
            .iter()
            .filter(|(_, call)| which(call))
            .map(|(at, _)| *at)
            .collect()
    }

    /// Waits until so many of these were written.
    pub(crate) async fn until(&self, n: usize, which: impl Fn(&Call) -> bool) {
        let enough =
            |all: &Vec<(Moment, Call)>| all.iter().filter(|(_, call)| which(call)).count() >= n;
        drop(self.0.subscribe().wait_for(enough).await.unwrap());
    }

    pub(crate) async fn until_released(&self, n: usize) {
        self.until(n, |call| matches!(call, Call::Release(..)))
            .await;
    }

    pub(crate) async fn until_claimed(&self, n: usize) {
        self.until(n, |call| matches!(call, Call::Claim(_))).await;
    }
}
