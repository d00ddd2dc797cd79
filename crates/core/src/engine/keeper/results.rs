//! What becomes of the requests that renew.
//!
//! An answer is worth something whenever it comes, because it counts from the send. A late answer
//! therefore extends the lease as far as it can, even if another request was sent for the same
//! lease meanwhile.

use std::time::Duration;

use super::Keeper;
use super::batch::{BatchResult, RenewalBatch, no_answer};
use super::kept::BatchItem;
use crate::engine::events;
use crate::seam::clock::Moment;
use crate::seam::error::Result;
use crate::seam::grant::Renewal;
use crate::support::locked;

impl Keeper {
    /// Takes in what became of a batch; returns it if it is still in flight. `others` are under way.
    pub(super) fn take_result(&self, (batch, answer): BatchResult, early: f64, others: bool) -> Option<RenewalBatch> {
        let Some(answer) = answer else {
            self.late(&batch);
            return Some(batch);
        };
        self.answered(batch, answer, early, others);
        None
    }

    /// Takes in what the store answered to a batch, however late: it counts from when it was sent.
    fn answered(&self, batch: RenewalBatch, answer: Result<Vec<Renewal>>, early: f64, others: bool) {
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
        let mut registry = locked(&self.registry);
        registry.moved = Some(now);
        // What was not renewed says nothing of how long that takes.
        let answered = items.iter().zip(&renewed).filter(|(_, renewed)| **renewed);
        if let Some(shortest) = answered.map(|(item, _)| item.state.ttl()).min() {
            registry.width.answered((sent, now), late, shortest, others);
        }
        // Where one request renews all, their number is not why.
        let of_number = registry.kept.len() > self.backend.renew_batch();
        let (mut behind, mut slowest): (_, Option<(Duration, &BatchItem)>) = (None, None);
        for (item, renewed) in items.iter().zip(renewed) {
            registry.answered(item.state.kept_as(), sent, now, early, renewed);
            let ttl = item.state.ttl();
            if renewed && of_number && registry.width.is_behind(item.due_since, now, ttl) {
                behind = behind.max(Some(ttl));
            }
            let beyond = now.since(item.due_since).saturating_sub(ttl / 3);
            if beyond > slowest.map_or(Duration::ZERO, |(most, _)| most) {
                slowest = Some((beyond, item));
            }
        }
        let slowest = slowest.filter(|(_, item)| registry.warns(now, item.state.ttl()));
        let holds = registry.holds;
        drop(registry);
        if let Some(ttl) = behind {
            self.falls_behind(now, ttl);
        }
        if let Some((_, BatchItem { state, due_since, .. })) = slowest {
            events::renewals_slow(&state.claim, holds, now.since(*due_since), state.ttl());
        }
    }

    /// A batch is late: its leases are renewed again soon.
    fn late(&self, batch: &RenewalBatch) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        registry.width.late(batch.sent, now);
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
