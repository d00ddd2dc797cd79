//! What the verbs share: the nodes, the names, and which tokens this client's holds have. Keeping and giving back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::seam::{Bells, Claim, ClaimId, Moment, Renewal, Tenure, Validity};
use leasehold_core::{Error, FencingToken, Loss, Result};
use leasehold_redis::client::Value;
use leasehold_redis::parts::{Call, Names, again, record};

use crate::claim::{TURNS, lease, mode};
use crate::nodes::{Flight, Nodes};

/// The longest label that is stored, in bytes: an election's value.
const LABEL: usize = 4096;
/// How many renewals travel together: a node has a few milliseconds of work with these.
const FLIGHT: usize = 500;

pub(crate) struct Store {
    pub(crate) nodes: Nodes,
    pub(crate) names: Arc<Names>,
    /// Where this client's pushes arrive, on every node.
    pub(crate) channel: String,
    pub(crate) bells: Bells,
    /// The tokens on which majorities agreed. A node that granted late may have answered another one, so only who
    /// counted knows.
    pub(crate) holds: Mutex<HashMap<ClaimId, FencingToken>>,
    /// Numbers the requests that take, keep and release.
    pub(crate) attempts: AtomicU64,
}

impl Store {
    pub(crate) fn attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// The start of every call for a claim: `verb id ttl mode turns channel label attempt`.
    pub(crate) fn call(&self, verb: &str, claim: &Claim, mode: &str) -> Call {
        let args = vec![
            verb.to_owned(),
            claim.id.to_string(),
            lease(claim).as_millis().to_string(),
            mode.to_owned(),
            TURNS.to_string(),
            self.channel.clone(),
            clip(&claim.label).to_owned(),
            self.attempt().to_string(),
        ];
        Call { keys: self.names.keys(&claim.name), args }
    }

    fn keep_call(&self, claim: &Claim, token: FencingToken, what: &str) -> Result<Call> {
        let mut call = self.call("keep", claim, mode(claim.mode)?);
        call.args.extend([token.to_string(), what.to_owned()]);
        Ok(call)
    }

    /// Extends one hold, and writes its token to all who have it. Says whether a majority has it.
    pub(crate) async fn extend(&self, claim: &Claim, token: FencingToken, what: &str) -> Result<bool> {
        let mut flight = self.nodes.send_one(self.keep_call(claim, token, what)?);
        let mut count = Count::default();
        while count.verdict(&self.nodes).is_none() {
            let Some((nth, answer)) = flight.next().await else { break };
            count.enter(nth, answer);
        }
        flight.let_land();
        count.verdict(&self.nodes).ok_or_else(|| self.nodes.failure(count.failed))
    }

    pub(crate) async fn keep(self: &Arc<Self>, tenures: &[Tenure]) -> Result<Vec<Renewal>> {
        let mut renewals = Vec::with_capacity(tenures.len());
        for some in tenures.chunks(FLIGHT) {
            renewals.extend(self.keep_some(some).await?);
        }
        Ok(renewals)
    }

    async fn keep_some(self: &Arc<Self>, tenures: &[Tenure]) -> Result<Vec<Renewal>> {
        let sent = Moment::now();
        let (mut held, mut calls) = (Vec::new(), Vec::new());
        let mut asked = Vec::with_capacity(tenures.len());
        for Tenure { claim, token, .. } in tenures {
            // Numbered before the look: so whatever is released after it has the greater number.
            let call = token.map(|token| self.keep_call(claim, token, "renew")).transpose()?;
            let call = call.filter(|_| self.settled(claim.id).is_some());
            asked.push(call.is_some().then_some(held.len()));
            if let (Some(token), Some(call)) = (token, call) {
                held.push((claim.clone(), *token));
                calls.push(call);
            }
        }
        let mut counts: Vec<Count> = held.iter().map(|_| Count::default()).collect();
        let mut flight = self.nodes.send(calls);
        while counts.iter().any(|count| count.verdict(&self.nodes).is_none()) {
            let Some((nth, answers)) = flight.next().await else { break };
            enter_all(&mut counts, nth, answers);
        }
        let renewal = |(tenure, nth): (&Tenure, Option<usize>)| {
            let renewed = Renewal::Renewed(Validity::since(sent, lease(&tenure.claim)));
            let Some(count) = nth.and_then(|nth| counts.get_mut(nth)) else {
                // A claim that waits has no place to renew: it comes back by itself, sooner than a lease. A hold that is
                // not among ours was released.
                return if tenure.token.is_none() { renewed } else { Renewal::Lost(Loss::Gone) };
            };
            match count.verdict(&self.nodes) {
                Some(true) => renewed,
                Some(false) => Renewal::Lost(Loss::Gone),
                None => Renewal::Unknown(self.nodes.failure(std::mem::take(&mut count.failed))),
            }
        };
        let renewals = tenures.iter().zip(asked).map(renewal).collect();
        if !held.is_empty() {
            self.top_up_later(held, counts, flight);
        }
        Ok(renewals)
    }

    /// Gives the holds that a majority has to the nodes that lost them or never had them, once these have answered.
    fn top_up_later(
        self: &Arc<Self>,
        held: Vec<(Arc<Claim>, FencingToken)>,
        mut counts: Vec<Count>,
        mut flight: Flight<Result<Vec<Result<Value>>>>,
    ) {
        if !flight.is_open() && counts.iter().all(|count| count.gone.is_empty()) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            while let Some((nth, answers)) = flight.next().await {
                enter_all(&mut counts, nth, answers);
            }
            counts
                .iter_mut()
                .filter(|count| count.verdict(&store.nodes) != Some(true))
                .for_each(|count| count.gone.clear());
            for nth in 0..store.nodes.len() {
                let lacking = held.iter().zip(&counts).filter(|(_, count)| count.gone.contains(&nth));
                let calls = lacking.filter_map(|((claim, token), _)| {
                    let call = store.keep_call(claim, *token, "top").ok();
                    call.filter(|_| store.settled(claim.id).is_some())
                });
                let calls: Vec<Call> = calls.collect();
                if !calls.is_empty() {
                    store.nodes.tell(nth, calls).await;
                }
            }
        });
    }

    /// Removes every trace of a claim, on every node. A majority's word is enough: the others have been told too.
    pub(crate) async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.forget(claim.id);
        let mut flight = self.nodes.send_one(self.release(claim, false));
        let (mut done, mut failed) = (0, Vec::new());
        while done < self.nodes.majority() {
            match flight.next().await {
                Some((_, Ok(_))) => done += 1,
                Some((nth, Err(e))) => failed.push((nth, e)),
                None => return Err(self.nodes.failure(failed)),
            }
        }
        flight.let_land();
        Ok(())
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
fn enter_all(counts: &mut [Count], nth: usize, answers: Result<Vec<Result<Value>>>) {
    match answers {
        Ok(answers) => counts.iter_mut().zip(answers).for_each(|(count, answer)| count.enter(nth, answer)),
        Err(e) => counts.iter_mut().for_each(|count| count.failed.push((nth, again(&e)))),
    }
}

/// The label, or as much of it as is stored.
fn clip(label: &str) -> &str {
    let end = (0..=LABEL.min(label.len())).rev().find(|end| label.is_char_boundary(*end));
    &label[..end.unwrap_or_default()]
}
