//! Completions: the records that work is done.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::SystemTime;

use leasehold_core::backend::{
    Claim, ClaimId, Complete, Completed, Completions, Moment, async_trait,
};
use leasehold_core::{Completion, FencingToken, Keep, Name, Result};

use crate::Memory;
use crate::claim::Queue;

/// The completions of all names.
#[derive(Default)]
pub(crate) struct Recorded {
    all: BTreeMap<Name, Record>,
    /// With so many, those whose keep has passed are removed.
    sweep_at: usize,
}

struct Record {
    /// The claim that has completed its work.
    id: ClaimId,
    completion: Completion,
    /// The end of its keep; `None` if it counts for ever.
    until: Option<Moment>,
}

impl Record {
    fn counts(&self, now: Moment) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    fn shown(&self, now: Moment) -> Completion {
        let mut shown = self.completion.clone();
        shown.left = self.until.map(|until| until.since(now));
        shown
    }
}

impl Recorded {
    /// The completion that counts for this claim.
    pub(crate) fn done(&self, claim: &Claim, now: Moment) -> Option<Completion> {
        let record = self
            .all
            .get(&claim.name)
            .filter(|record| record.counts(now))?;
        let counts = record.completion.counts_for(claim.once?);
        counts.then(|| record.shown(now))
    }

    fn of(&self, name: &Name, now: Moment) -> Option<&Record> {
        self.all.get(name).filter(|record| record.counts(now))
    }

    /// Adds one, and removes those whose keep has passed when their number may have doubled.
    fn insert(&mut self, name: Name, record: Record, now: Moment) {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|_, record| record.counts(now));
            self.sweep_at = (self.all.len() * 2).max(64);
        }
        self.all.insert(name, record);
    }
}

impl Queue {
    /// Ends the hold of this claim with this token. Returns whether there was one.
    fn end_hold(&mut self, id: ClaimId, token: FencingToken) -> bool {
        let before = self.entries.len();
        self.entries
            .retain(|entry| entry.claim.id != id || !entry.owns(token));
        self.entries.len() < before
    }

    /// Ends the places of all claims for which the work is done now, and tells their clients to
    /// ask.
    fn tell(&mut self, completion: &Completion) {
        self.entries.retain(|entry| {
            let counts = entry
                .claim
                .once
                .is_some_and(|fire| completion.counts_for(fire));
            let ends = counts && !entry.holds();
            if ends {
                entry
                    .link
                    .notify(|notifier| notifier.claim_again(entry.claim.id));
            }
            !ends
        });
    }
}

#[async_trait]
impl Completions for Memory {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.request(|store| {
            let (mut state, now) = store.world.state();
            let fire = claim.once.unwrap_or_default();
            if let Some(record) = state.recorded.of(&claim.name, now) {
                if record.id == claim.id {
                    return Completed::Done(record.shown(now));
                }
                if record.completion.counts_for(fire) {
                    return Completed::NotHeld;
                }
            }
            let mut completion =
                Completion::new(request.token, claim.label.clone(), SystemTime::now());
            completion.fire = fire;
            completion.result = request.result.clone();
            completion.is_cut = request.is_cut;
            let is_held = state.with_queue(&claim.name, now, |queue, _, _| {
                let is_held = queue.end_hold(claim.id, request.token);
                if is_held {
                    queue.tell(&completion);
                }
                is_held
            });
            if !is_held {
                return Completed::NotHeld;
            }
            let until = match request.keep {
                Keep::For(keep) => Some(now + keep),
                Keep::Forever => None,
            };
            let record = Record {
                id: claim.id,
                completion,
                until,
            };
            let shown = record.shown(now);
            state.recorded.insert(claim.name.clone(), record, now);
            Completed::Done(shown)
        })
        .await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        self.request(|store| {
            let (state, now) = store.world.state();
            state.recorded.of(name, now).map(|record| record.shown(now))
        })
        .await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.request(|store| {
            let (mut state, now) = store.world.state();
            let is_it = state
                .recorded
                .of(name, now)
                .is_some_and(|record| record.completion.token == token);
            if is_it {
                state.recorded.all.remove(name);
            }
            is_it
        })
        .await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.request(|store| {
            let (state, now) = store.world.state();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            state
                .recorded
                .all
                .range((from, Bound::Unbounded))
                .filter(|(name, record)| name.as_str().starts_with(prefix) && record.counts(now))
                .take(limit)
                .map(|(name, record)| (name.clone(), record.shown(now)))
                .collect()
        })
        .await
    }
}
