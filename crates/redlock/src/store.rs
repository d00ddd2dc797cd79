//! What the verbs share: the nodes, the names, and which tokens this client's holds have. Keeping and giving back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::seam::{Claim, ClaimId, Mode, Moment, Renewal, Tenure, Validity};
use leasehold_core::{Error, FencingToken, Loss, Result};
use leasehold_redis_client::{Call, Inbox, Names, again, record};
use redis::Value;

use crate::claim::{TURNS, lease};
use crate::nodes::{Flight, Nodes, hear, let_land};

/// The longest label that is stored, in bytes: an election's value.
const LABEL: usize = 4096;
/// How many renewals travel together: a node has a few milliseconds of work with these.
const FLIGHT: usize = 500;

pub(crate) struct Store {
    pub(crate) nodes: Nodes,
    pub(crate) names: Arc<Names>,
    pub(crate) inbox: Inbox,
    /// The tokens on which majorities agreed. A node that granted late may have answered another one, so only who
    /// counted knows.
    pub(crate) holds: Mutex<HashMap<ClaimId, FencingToken>>,
    /// Numbers the requests that take, keep and release.
    pub(crate) attempts: AtomicU64,
}

impl Store {
    /// What every call for a claim begins with: `verb id ttl mode turns channel label attempt`.
    pub(crate) fn call(&self, verb: &str, claim: &Claim) -> Call {
        let mode = if claim.mode == Mode::Shared { "s" } else { "x" };
        let call = Call::on(self.names.keys(&claim.name)).arg(verb).arg(claim.id).arg(lease(claim).as_millis());
        let call = call.arg(mode).arg(TURNS).arg(self.inbox.channel()).arg(clip(&claim.label));
        call.arg(self.attempts.fetch_add(1, Ordering::Relaxed))
    }

    fn keep_call(&self, claim: &Claim, token: FencingToken, what: &str) -> Call {
        self.call("keep", claim).arg(token).arg(what)
    }

    /// Extends one hold, and writes its token to all who have it. Says whether a majority has it.
    pub(crate) async fn extend(&self, claim: &Claim, token: FencingToken, what: &str) -> Result<bool> {
        let mut flight = self.nodes.send(self.keep_call(claim, token, what));
        let mut count = Count::default();
        hear(&mut flight, |nth, answer| {
            count.enter(nth, answer);
            count.verdict(&self.nodes).is_some()
        })
        .await;
        let_land(flight);
        count.verdict(&self.nodes).ok_or_else(|| self.nodes.failure(count.failed))
    }

    pub(crate) async fn keep(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(tenures.len());
        for some in tenures.chunks(FLIGHT) {
            renewals.extend(self.keep_some(some).await);
        }
        renewals
    }

    async fn keep_some(self: &Arc<Self>, tenures: &[Tenure]) -> Vec<Renewal> {
        let sent = Moment::now();
        let renewed = |claim: &Claim| Renewal::Renewed(Validity::since(sent, lease(claim)));
        let (mut renewals, mut held, mut calls) = (Vec::with_capacity(tenures.len()), Vec::new(), Vec::new());
        for (nth, Tenure { claim, token, .. }) in tenures.iter().enumerate() {
            // A claim that waits has no place to renew: it comes back by itself, sooner than a lease.
            let Some(token) = *token else {
                renewals.push(renewed(claim));
                continue;
            };
            // Numbered before the look: so whatever is released after it has the greater number.
            let call = self.keep_call(claim, token, "renew");
            // A hold that is not among ours was released.
            renewals.push(Renewal::Lost(Loss::Gone));
            if self.settled(claim.id).is_some() {
                held.push(Held { nth, claim: claim.clone(), token, count: Count::default() });
                calls.push(call);
            }
        }
        if held.is_empty() {
            return renewals;
        }
        let mut flight = self.nodes.send_all(calls);
        hear(&mut flight, |node, answers| {
            enter_all(&mut held, node, answers);
            held.iter().all(|held| held.count.verdict(&self.nodes).is_some())
        })
        .await;
        for Held { nth, claim, count, .. } in &mut held {
            renewals[*nth] = match count.verdict(&self.nodes) {
                Some(true) => renewed(claim),
                Some(false) => Renewal::Lost(Loss::Gone),
                None => Renewal::Unknown(self.nodes.failure(std::mem::take(&mut count.failed))),
            };
        }
        self.top_up_later(held, flight);
        renewals
    }

    /// Gives the holds that a majority has to the nodes that lost them or never had them, once these have answered.
    fn top_up_later(self: &Arc<Self>, mut held: Vec<Held>, mut flight: Flight<Vec<Result<Value>>>) {
        if flight.is_empty() && held.iter().all(|held| held.count.gone.is_empty()) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            hear(&mut flight, |node, answers| {
                enter_all(&mut held, node, answers);
                false
            })
            .await;
            held.retain(|held| held.count.verdict(&store.nodes) == Some(true));
            for node in 0..store.nodes.len() {
                let lacking = held.iter().filter(|held| held.count.gone.contains(&node));
                let calls = lacking.filter_map(|held| {
                    let call = store.keep_call(&held.claim, held.token, "top");
                    store.settled(held.claim.id).map(|_| call)
                });
                let calls: Vec<Call> = calls.collect();
                if !calls.is_empty() {
                    store.nodes.tell(node, calls).await;
                }
            }
        });
    }

    /// Removes every trace of a claim, on every node. A majority's word is enough: the others have been told too.
    pub(crate) async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.forget(claim.id);
        self.nodes.majority_of(self.nodes.send(self.release_call(claim, false)), false).await.map(drop)
    }

    /// Ends what was taken up to now, and nothing that is taken later.
    pub(crate) fn release_call(&self, claim: &Claim, stays: bool) -> Call {
        self.call("release", claim).arg(u8::from(stays))
    }

    pub(crate) fn settled(&self, id: ClaimId) -> Option<FencingToken> {
        self.holds().get(&id).copied()
    }

    pub(crate) fn settle(&self, id: ClaimId, token: FencingToken) {
        self.holds().insert(id, token);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.holds().remove(&id);
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, FencingToken>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hold that is renewed.
struct Held {
    /// Which of those that core asked about.
    nth: usize,
    claim: Arc<Claim>,
    token: FencingToken,
    count: Count,
}

/// What the nodes said of one hold.
#[derive(Default)]
struct Count {
    kept: usize,
    gone: Vec<usize>,
    failed: Vec<(usize, Error)>,
}

impl Count {
    fn enter(&mut self, nth: usize, answer: Result<Value>) {
        match answer.and_then(|answer| record(&answer)) {
            Ok(word) if word == "kept" => self.kept += 1,
            Ok(_) => self.gone.push(nth),
            Err(e) => self.failed.push((nth, e)),
        }
    }

    /// Whether a majority has it, as soon as that is certain.
    fn verdict(&self, nodes: &Nodes) -> Option<bool> {
        let needed = nodes.majority();
        let lost = nodes.len() - self.gone.len() < needed;
        (self.kept >= needed || lost).then_some(!lost)
    }
}

/// One node's answers, one for each hold; or its failure, which concerns all.
fn enter_all(held: &mut [Held], node: usize, answers: Result<Vec<Result<Value>>>) {
    match answers {
        Ok(answers) => held.iter_mut().zip(answers).for_each(|(held, answer)| held.count.enter(node, answer)),
        Err(e) => held.iter_mut().for_each(|held| held.count.failed.push((node, again(&e)))),
    }
}

/// The label, or as much of it as is stored.
fn clip(label: &str) -> &str {
    let end = (0..=LABEL.min(label.len())).rev().find(|end| label.is_char_boundary(*end));
    &label[..end.unwrap_or_default()]
}
