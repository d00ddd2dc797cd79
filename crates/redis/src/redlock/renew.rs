//! `renew`: all holds in one request to each node. A hold that a majority has is given to the nodes
//! that lack it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::link::{Call, again};
use leasehold_core::backend::{Claim, ClaimId, LeaseRef, Moment, Renewal, Validity};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Result};
use redis::Value;

use crate::redlock::Shared;
use crate::redlock::client::nodes::{InFlight, Nodes, await_later, each_answer};
use crate::redlock::entry::{Held, ttl};

impl Shared {
    fn renew_call(&self, claim: &Claim, token: FencingToken, what: &str) -> Call {
        self.call("renew", claim).arg(token).arg(what)
    }

    /// Extends one hold, and writes its token to all nodes that have it. Returns whether a majority
    /// has it.
    pub(crate) async fn extend(&self, claim: &Claim, token: FencingToken) -> Result<bool> {
        let mut count = [Count::default()];
        let requests = self
            .count(&mut count, vec![self.renew_call(claim, token, "renew")])
            .await;
        await_later(requests);
        let [count] = count;
        count.verdict(&self.nodes).ok_or_else(|| {
            let done = count.kept > 0;
            let failure = self.nodes.failure(count.failed);
            // Some nodes have done it.
            if done {
                Error::new(ErrorKind::Ambiguous, failure.to_string())
            } else {
                failure
            }
        })
    }

    pub(crate) async fn renew(self: &Arc<Self>, leases: &[LeaseRef]) -> Vec<Renewal> {
        let sent = Moment::now();
        let mut held = Vec::new();
        let mut calls = Vec::new();
        for LeaseRef { claim, .. } in leases.iter().filter(|lease| lease.token.is_some()) {
            // The label comes from the renewal. The mode comes from this client's memory: only the
            // answer to a claim tells whether the hold was made shared.
            let relabelled = self.holds().get_mut(&claim.id).map(|held| {
                if held.claim.label != claim.label {
                    Arc::make_mut(&mut held.claim).label = claim.label.clone();
                }
                held.clone()
            });
            let Some(Held { token, claim, .. }) = relabelled else {
                continue;
            };
            // The call is numbered before the check, so a release after it has the greater number.
            let call = self.renew_call(&claim, token, "renew");
            if self.held(claim.id).is_some_and(|held| held.token == token) {
                held.push(claim.id);
                calls.push(call);
            }
        }
        let mut counts: Vec<Count> = held.iter().map(|_| Count::default()).collect();
        let requests = self.count(&mut counts, calls).await;
        let mut verdicts: HashMap<ClaimId, _> = HashMap::with_capacity(held.len());
        for (id, count) in held.iter().zip(&mut counts) {
            let verdict = count.verdict(&self.nodes);
            verdicts.insert(
                *id,
                verdict.ok_or_else(|| self.nodes.failure(std::mem::take(&mut count.failed))),
            );
        }
        self.top_up_later(held, counts, requests);
        let renewal =
            |LeaseRef { claim, token, .. }: &LeaseRef| match (token, verdicts.get(&claim.id)) {
                // A waiter has no place to renew: it claims again by itself, earlier than its lease
                // would end.
                (None, _) | (_, Some(Ok(true))) => {
                    Renewal::Renewed(Validity::since(sent, ttl(claim)))
                }
                (_, Some(Err(e))) => Renewal::Unknown(again(e)),
                // A hold that this client does not remember was released.
                (_, Some(Ok(false)) | None) => Renewal::Lost(Loss::Gone),
            };
        leases.iter().map(renewal).collect()
    }

    /// Sends these calls to every node, one for each count, and counts the answers until every
    /// verdict is certain. Returns the requests that are not answered yet.
    async fn count(&self, counts: &mut [Count], calls: Vec<Call>) -> InFlight<Vec<Result<Value>>> {
        let mut requests = if calls.is_empty() {
            InFlight::new()
        } else {
            self.nodes.send_all(calls)
        };
        each_answer(&mut requests, |node, answers| {
            counts.iter_mut().zip(answers).for_each(|(count, answer)| {
                count.enter(node, answer.and_then(|it| self.nodes.record(node, &it)));
            });
            counts
                .iter()
                .all(|count| count.verdict(&self.nodes).is_some())
        })
        .await;
        requests
    }

    /// Gives the holds that a majority has to the nodes that lost them or never had them, once the
    /// remaining nodes have answered.
    fn top_up_later(
        self: &Arc<Self>,
        held: Vec<ClaimId>,
        mut counts: Vec<Count>,
        mut requests: InFlight<Vec<Result<Value>>>,
    ) {
        if requests.is_empty() && counts.iter().all(|count| count.gone.is_empty()) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            each_answer(&mut requests, |node, answers| {
                counts.iter_mut().zip(answers).for_each(|(count, answer)| {
                    count.enter(node, answer.and_then(|it| shared.nodes.record(node, &it)));
                });
                false
            })
            .await;
            for node in 0..shared.nodes.len() {
                let lacks = |count: &Count| {
                    count.verdict(&shared.nodes) == Some(true) && count.gone.contains(&node)
                };
                let lacking = held.iter().zip(&counts).filter(|(_, count)| lacks(count));
                let calls = lacking.filter_map(|(id, _)| {
                    // The hold in its current state.
                    let Held {
                        token,
                        claim,
                        released,
                    } = shared.held(*id)?;
                    Some(shared.renew_call(&claim, token, "top").until(released))
                });
                let calls: Vec<Call> = calls.collect();
                shared.nodes.send_to(node, calls).await;
            }
        });
    }
}

/// The nodes' answers about one hold.
#[derive(Default)]
struct Count {
    kept: usize,
    gone: Vec<usize>,
    failed: Vec<(usize, Error)>,
}

impl Count {
    fn enter(&mut self, nth: usize, answer: Result<String>) {
        match answer {
            Ok(word) if word == "kept" => self.kept += 1,
            Ok(_) => self.gone.push(nth),
            Err(e) => self.failed.push((nth, e)),
        }
    }

    /// Returns whether a majority has the hold, as soon as that is certain.
    fn verdict(&self, nodes: &Nodes) -> Option<bool> {
        let needed = nodes.majority();
        let lost = nodes.len() - self.gone.len() < needed;
        (self.kept >= needed || lost).then_some(!lost)
    }
}
