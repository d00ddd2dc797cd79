//! The processing of answers to requests that renew.
//!
//! An answer is worth something whenever it comes, because it counts from the send. A late answer
//! therefore extends the lease as far as it can, even if another request was sent for the same
//! lease meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::Keeper;
use super::batch::{BatchResult, RenewalBatch, no_answer};
use super::kept::BatchItem;
use super::registry::News;
use crate::backend::clock::Moment;
use crate::backend::error::{Error, Result};
use crate::backend::grant::Renewal;
use crate::engine::claim_state::RenewalFacts;
use crate::engine::events;
use crate::support::locked;

impl Keeper {
    /// Processes the result of a batch; returns the batch if it is still in flight. `others` is
    /// true if other batches are under way.
    pub(super) fn take_result(
        &self,
        (batch, answer): BatchResult,
        others: bool,
    ) -> Option<RenewalBatch> {
        let Some(answer) = answer else {
            self.late(&batch);
            return Some(batch);
        };
        self.answered(batch, answer, others);
        None
    }

    /// Processes the store's answer to a batch, however late it is: it counts from the moment when
    /// the request was sent.
    fn answered(&self, batch: RenewalBatch, answer: Result<Vec<Renewal>>, others: bool) {
        let RenewalBatch {
            items,
            planned,
            sent,
            late,
            ..
        } = batch;
        // The first claim whose renewal failed, with the error.
        let mut failed = None;
        let mut answers = match answer {
            Ok(all) => all.into_iter(),
            Err(e) => {
                let why = Arc::new(e);
                for item in &items {
                    item.state.unrenewed(why.clone());
                }
                failed = items.first().map(|first| (first, why));
                Vec::new().into_iter()
            }
        };
        let now = self.clock.now();
        let taken_in = |item| {
            let (seen, why) = taken_in(item, answers.next(), (sent, now));
            let renewed = why.is_none();
            if failed.is_none()
                && let Some(Some(e)) = why
            {
                failed = Some((item, e));
            }
            (renewed, seen)
        };
        let seen: Vec<(bool, RenewalFacts)> = items.iter().map(taken_in).collect();
        let most = self.backend.renew_batch();
        let mut registry = locked(&self.registry);
        registry.agenda.moved = Some(now);
        // Only leases that were renewed show how long a renewal takes.
        let renewed = items.iter().zip(&seen).filter(|(_, (renewed, _))| *renewed);
        if let Some(shortest) = renewed.map(|(item, _)| item.ttl).min() {
            registry.width.answered((sent, now), late, shortest, others);
        }
        // If one request renews all leases, their number is not the cause of a delay.
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
        let news = registry.news(now);
        drop(registry);
        match (news, failed, items.first()) {
            (Some(News::Begins(claims)), Some((item, e)), _) => {
                events::renewals_unanswered(&item.state.claim, claims, &e);
            }
            (Some(News::Ends(outage)), _, Some(item)) => {
                let lasted = now.since(outage.since);
                events::renewals_answered(&item.state.claim, outage.requests, lasted);
            }
            _ => {}
        }
        if let Some(ttl) = behind {
            self.falls_behind(now, ttl);
        }
        if let Some((
            _,
            BatchItem {
                state,
                ttl,
                due_since,
                ..
            },
        )) = slowest
        {
            events::renewals_slow(&state.claim, holds, now.since(*due_since), *ttl);
        }
    }

    /// A batch is late: its leases are renewed again soon.
    fn late(&self, batch: &RenewalBatch) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        registry.width.late(batch.sent, now);
        batch
            .items
            .iter()
            .for_each(|item| registry.overdue(item.state.kept_as(), now));
        let news = registry.news(now);
        drop(registry);
        let why = Arc::new(no_answer());
        if let (Some(News::Begins(claims)), Some(first)) = (news, batch.items.first()) {
            events::renewals_unanswered(&first.state.claim, claims, &why);
        }
        for item in &batch.items {
            item.state.unrenewed(why.clone());
        }
    }
}

/// Processes the answer about one lease. Returns the facts that matter for its next renewal, and,
/// if there was no answer about it, `Some` with the error as far as it is known.
fn taken_in(
    item: &BatchItem,
    answer: Option<Renewal>,
    (sent, now): (Moment, Moment),
) -> (RenewalFacts, Option<Option<Arc<Error>>>) {
    let BatchItem { state, token, .. } = item;
    match answer {
        Some(Renewal::Renewed(validity)) => {
            return (state.extend_at(now, *token, validity, sent), None);
        }
        Some(Renewal::Granted(grant)) => state.handed_over(grant, sent),
        Some(Renewal::Lost(loss)) => state.lose_lease(*token, loss),
        Some(Renewal::Unknown(e)) => {
            let why = Arc::new(e);
            state.unrenewed(why.clone());
            return (state.look(), Some(Some(why)));
        }
        None => return (state.look(), Some(None)),
    }
    (state.look(), None)
}
