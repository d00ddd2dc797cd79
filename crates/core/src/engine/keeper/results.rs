//! What becomes of the requests that renew.
//!
//! An answer is worth something whenever it comes, because it counts from the send. A late answer
//! therefore extends the lease as far as it can, even if another request was sent for the same
//! lease meanwhile.

use super::Keeper;
use super::batch::{BatchResult, RenewalBatch, no_answer};
use super::kept::BatchItem;
use crate::engine::events;
use crate::seam::clock::Moment;
use crate::seam::error::Result;
use crate::seam::grant::Renewal;
use crate::support::locked;

impl Keeper {
    /// Takes in what became of a batch; returns it if it is still in flight.
    pub(super) fn take_result(&self, (batch, answer): BatchResult, early: f64) -> Option<RenewalBatch> {
        let Some(answer) = answer else {
            self.late(&batch);
            return Some(batch);
        };
        self.answered(batch, answer, early);
        None
    }

    /// Takes in what the store answered to a batch, however late: it counts from when it was sent.
    fn answered(&self, batch: RenewalBatch, answer: Result<Vec<Renewal>>, early: f64) {
        let RenewalBatch { items, sent, late, .. } = batch;
        let mut answers = match answer {
            Ok(all) => all.into_iter(),
            Err(e) => {
                if let Some(first) = items.first().filter(|_| !late) {
                    events::renewal_unknown(&first.state.claim, &e);
                }
                Vec::new().into_iter()
            }
        };
        let renewed: Vec<bool> = items.iter().map(|item| taken_in(item, answers.next(), sent)).collect();
        let now = self.clock.now();
        let mut slowest: Option<&BatchItem> = None;
        let mut registry = locked(&self.registry);
        registry.moved = Some(now);
        for (item, renewed) in items.iter().zip(renewed) {
            registry.answered(item.state.kept_as(), sent, now, early, renewed);
            if slowest.is_none_or(|other| item.due_since < other.due_since) {
                slowest = Some(item);
            }
        }
        let late_by = |part: u32| slowest.filter(|item| now.since(item.due_since) > item.state.ttl() / part);
        // Where one request renews all, their number is not why.
        if let Some(item) = late_by(6).filter(|_| registry.kept.len() > self.backend.renew_batch()) {
            self.falls_behind(now, item.state.ttl());
        }
        let slowest = late_by(3).filter(|item| registry.warns(now, item.state.ttl()));
        let holds = registry.holds;
        drop(registry);
        if let Some(BatchItem { state, due_since, .. }) = slowest {
            events::renewals_slow(&state.claim, holds, now.since(*due_since), state.ttl());
        }
    }

    /// A batch is late: its leases are renewed again soon.
    fn late(&self, batch: &RenewalBatch) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        batch.items.iter().for_each(|item| registry.overdue(item.state.kept_as(), now));
        drop(registry);
        if let Some(first) = batch.items.first() {
            events::renewal_unknown(&first.state.claim, &no_answer());
        }
    }
}

/// Takes in the answer about one, and says if it was renewed.
fn taken_in(BatchItem { state, lease, .. }: &BatchItem, answer: Option<Renewal>, sent: Moment) -> bool {
    match answer {
        Some(Renewal::Renewed(validity)) => state.extend(lease.token, validity, sent),
        Some(Renewal::Granted(grant)) => state.grant(grant, sent),
        Some(Renewal::Lost(loss)) => state.lose_lease(lease.token, loss),
        Some(Renewal::Unknown(e)) => {
            events::renewal_unknown(&state.claim, &e);
            return false;
        }
        None => return false,
    }
    true
}
