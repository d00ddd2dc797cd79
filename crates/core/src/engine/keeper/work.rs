//! The background work of the keeper, besides renewing.
//!
//! Background work is kept in the registry until it is done, so that another runtime can go on with
//! it. A request in flight goes with the first task that does the work, because it can be polled
//! only there.

use std::sync::Arc;

use crate::backend::clock::Moment;
use crate::engine::claim_state::ClaimState;
use crate::engine::completing::Completing;
use crate::engine::release::Release;
use crate::support::own_keys::OwnMap;

/// A piece of background work. It is kept until it is done, so that another runtime can go on with
/// it.
pub(crate) enum Work {
    Withdraw(Release),
    /// Lets a hold that was given back within its `min_hold` end at this moment.
    Lapse(Arc<ClaimState>, Moment),
    /// Completes the work of a hold, whose caller has left.
    Complete(Arc<ClaimState>, Completing),
}

impl Work {
    /// Returns the work for a task that does it now. A request that is still in flight goes with
    /// the first such task.
    pub(super) fn begin(&mut self) -> Work {
        match self {
            Work::Withdraw(Release { claims, in_flight }) => Work::Withdraw(Release {
                claims: claims.clone(),
                in_flight: in_flight.take(),
            }),
            Work::Lapse(state, at) => Work::Lapse(state.clone(), *at),
            Work::Complete(state, completing) => Work::Complete(state.clone(), completing.clone()),
        }
    }
}

/// All work that is not done yet.
#[derive(Default)]
pub(super) struct Works {
    all: OwnMap<u64, Work>,
    latest: u64,
    /// The numbers of the works that no task does yet.
    queued: Vec<u64>,
}

impl Works {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn queue(&mut self, work: Work) {
        self.latest += 1;
        self.all.insert(self.latest, work);
        self.queued.push(self.latest);
    }

    /// Takes the works that no task does yet.
    pub(super) fn take(&mut self) -> Vec<(u64, Work)> {
        let begin = |id: u64| self.all.get_mut(&id).map(|work| (id, work.begin()));
        std::mem::take(&mut self.queued)
            .into_iter()
            .filter_map(begin)
            .collect()
    }

    /// The caller drops what comes back when the mutex is free again.
    #[must_use]
    pub(super) fn finish(&mut self, id: u64) -> Option<Work> {
        self.all.remove(&id)
    }

    /// Queues all work again, for another task.
    pub(super) fn begin_anew(&mut self) {
        self.queued = self.all.keys().copied().collect();
    }
}
