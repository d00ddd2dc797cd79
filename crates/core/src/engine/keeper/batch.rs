//! One request that renews. Several are under way side by side, and a late one is not given up:
//! others overtake it.
//!
//! A request that renews may take longer than it should, for many reasons: the store is slow, the
//! connection is dead, the answer is lost. Only the elapsed time shows it. Therefore the request
//! has two limits: after a sixth of the shortest lease it counts as late, and its leases are asked
//! for again; after the longest lease its answer would be worthless.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::kept::{Batch, BatchItem};
use super::registry::Planned;
use crate::backend::clock::{Clock, Moment};
use crate::backend::contract::Backend;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::grant::Renewal;

pub(super) struct RenewalBatch {
    pub(super) items: Vec<BatchItem>,
    pub(super) planned: Planned,
    /// An instant before it was sent.
    pub(super) sent: Moment,
    /// The request has taken longer than it should, and no other request waits for it.
    pub(super) late: bool,
    answer: Pin<Box<dyn Future<Output = Result<Vec<Renewal>>> + Send>>,
}

/// A batch with its result; `None` if it is only late.
pub(super) type BatchResult = (RenewalBatch, Option<Result<Vec<Renewal>>>);

impl RenewalBatch {
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        clock: &Clock,
        batch: Batch,
        planned: Planned,
    ) -> RenewalBatch {
        let (backend, Batch { leases, items }) = (backend.clone(), batch);
        let answer = Box::pin(async move { backend.renew(&leases).await });
        RenewalBatch {
            items,
            planned,
            sent: clock.now(),
            late: false,
            answer,
        }
    }

    /// Waits for the answer: first for a sixth of the shortest lease, and once the request is late,
    /// until the longest lease is over.
    pub(super) async fn answer(mut self, clock: &Clock) -> BatchResult {
        let leases = || self.items.iter().map(|item| item.ttl);
        let limit = if self.late {
            leases().max().unwrap_or_default()
        } else {
            (leases().min().unwrap_or_default() / 6)
                .clamp(Duration::from_millis(50), Duration::from_secs(5))
        };
        let until = self.sent + limit;
        let answer = tokio::select! {
            biased;
            answer = &mut self.answer => Some(answer),
            () = clock.sleep_until(until) => None,
        };
        match answer {
            None if self.late => (self, Some(Err(no_answer()))),
            None => (RenewalBatch { late: true, ..self }, None),
            answered => (self, answered),
        }
    }
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Ambiguous, "the store did not answer in time")
}
