//! What becomes of the requests that renew.
//!
//! An answer is worth something whenever it comes, because it counts from the send. A late answer
//! therefore extends the lease as far as it can, even if another request was sent for the same
//! lease meanwhile.

use std::time::Duration;

use super::Keeper;
use super::batch::{BatchResult, RenewalBatch, no_answer};
use super::kept::BatchItem;
use crate::engine::claim_state::Seen;
use crate::engine::events;
use crate::seam::clock::Moment;
use crate::seam::error::Result;
use crate::seam::grant::Renewal;
use crate::support::locked;

impl Keeper {
    /// Takes in what became of a batch; returns it if it is still in flight. `others` are under way.
    pub(super) fn take_result(&self, (batch, answer): BatchResult, others: bool) -> Option<RenewalBatch> {
        let Some(answer) = answer else {
            self.late(&batch);
            return Some(batch);
        };
        self.answered(batch, answer, others);
        None
    }

    /// Takes in what the store answered to a batch, however late: it counts from when it was sent.
    fn answered(&self, batch: RenewalBatch, answer: Result<Vec<Renewal>>, others: bool) {
        let RenewalBatch { items, planned, sent, late, .. } = batch;
        let mut answers = match answer {
            Ok(all) => all.into_iter(),
            Err(e) => {
                if let Some(first) = items.first().filter(|_| !late) {
                    events::renewal_unknown(&first.state.claim, &e);
                }
                Vec::new().into_iter()
            }
        };
        let now = self.clock.now();
        let taken_in = |item| taken_in(item, answers.next(), (sent, now));
        let seen: Vec<(bool, Seen)> = items.iter().map(taken_in).collect();
        let most = self.backend.renew_batch();
        let mut registry = locked(&self.registry);
        registry.agenda.moved = Some(now);
        // What was not renewed says nothing of how long that takes.
        let renewed = items.iter().zip(&seen).filter(|(_, (renewed, _))| *renewed);
        if let Some(shortest) = renewed.map(|(item, _)| item.ttl).min() {
            registry.width.answered((sent, now), late, shortest, others);
        }
        // Where one request renews all, their number is not why.
        let of_number = registry.kept.len() > most;
        let (mut behind, mut slowest): (_, Option<(Duration, &BatchItem)>) = (None, None);
        for (item, (renewed, seen)) in items.iter().zip(&seen) {
            registry.answered(item.state.kept_as(), &planned, now, seen, *renewed);
            if *renewed && of_number && registry.width.is_behind(item.due_since, now, item.ttl) {
                behind = behind.max(Some(item.ttl));
            }
            let beyond = now.since(item.due_since).saturating_sub(item.ttl / 3);
            if beyond > slowest.map_or(Duration::ZERO, |(most, _)| most) {
                slowest = Some((beyond, item));
            }
        }
        let slowest = slowest.filter(|(_, item)| registry.warns(now, item.ttl));
        let holds = registry.agenda.holds;
        drop(registry);
        if let Some(ttl) = behind {
            self.falls_behind(now, ttl);
        }
        if let Some((_, BatchItem { state, ttl, due_since, .. })) = slowest {
            events::renewals_slow(&state.claim, holds, now.since(*due_since), *ttl);
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

/// Takes in the answer about one, and says if it was renewed, and what is so then.
fn taken_in(item: &BatchItem, answer: Option<Renewal>, (sent, now): (Moment, Moment)) -> (bool, Seen) {
    let BatchItem { state, token, .. } = item;
    match answer {
        Some(Renewal::Renewed(validity)) => return (true, state.extend_at(now, *token, validity, sent)),
        Some(Renewal::Granted(grant)) => state.grant(grant, sent),
        Some(Renewal::Lost(loss)) => state.lose_lease(*token, loss),
        Some(Renewal::Unknown(e)) => {
            events::renewal_unknown(&state.claim, &e);
            return (false, state.look());
        }
        None => return (false, state.look()),
    }
    (true, state.look())
}
