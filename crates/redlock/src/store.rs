//! What the verbs share: the nodes, the names, and this client's holds. Keeping and giving back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, LeaseRef, Mode, Moment, Renewal, Validity, locked};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Name, Result};
use leasehold_redis_client::{Call, Inbox, Names, again, record};
use redis::Value;

use crate::claim::{TURNS, lease};
use crate::nodes::{Flight, Nodes, hear, let_land};

pub(crate) struct Store {
    pub(crate) nodes: Nodes,
    pub(crate) names: Arc<Names>,
    pub(crate) inbox: Inbox,
    pub(crate) warnings: Vec<String>,
    pub(crate) holds: Mutex<HashMap<ClaimId, Held>>,
    /// Numbers the requests that take, keep and release.
    pub(crate) attempts: AtomicU64,
}

/// What a release leaves.
#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// No trace of the claim.
    ForGood = 0,
    /// Its place in the waiting room.
    StayInLine = 1,
    /// No trace of an attempt.
    OfAttempt = 2,
}

/// A hold of this client.
#[derive(Clone)]
pub(crate) struct Held {
    /// The token on which a majority agreed. A node that granted late may have answered another one, so only who counted knows.
    pub(crate) token: FencingToken,
    /// The claim as it is now. It is shared once a majority made it so, or may have: then never again exclusive.
    pub(crate) claim: Arc<Claim>,
}

impl Store {
    /// What every call for a claim begins with: `verb id ttl mode turns channel label attempt`.
    pub(crate) fn call(&self, verb: &str, claim: &Claim) -> Call {
        let mode = if claim.mode == Mode::Shared { "s" } else { "x" };
        let call = self.on(&claim.name).arg(verb).arg(claim.id).arg(lease(claim).as_millis());
        let call = call.arg(mode).arg(TURNS).arg(self.inbox.channel()).arg(&claim.label);
        call.arg(self.attempts.fetch_add(1, Ordering::Relaxed))
    }

    /// The keys of a name.
    pub(crate) fn on(&self, name: &Name) -> Call {
        let mut keys = self.names.keys(name).to_vec();
        keys.extend(["s", "e"].map(|key| self.names.beside(name, key)));
        Call::on(keys)
    }

    fn keep_call(&self, claim: &Claim, token: FencingToken, what: &str) -> Call {
        self.call("keep", claim).arg(token).arg(what)
    }

    /// Extends one hold, and writes its token to all who have it. Says whether a majority has it.
    pub(crate) async fn extend(&self, claim: &Claim, token: FencingToken) -> Result<bool> {
        let mut count = [Count::default()];
        let flight = self.count(&mut count, vec![self.keep_call(claim, token, "keep")]).await;
        let_land(flight);
        let [count] = count;
        count.verdict(&self.nodes).ok_or_else(|| {
            let (done, failure) = (count.kept > 0, self.nodes.failure(count.failed));
            // Some have done it.
            if done { Error::new(ErrorKind::Ambiguous, failure.to_string()) } else { failure }
        })
    }

    /// Claims a hold of ours again, as this claim says. Says whether a majority has it.
    pub(crate) async fn again(&self, claim: &Claim, token: FencingToken) -> Result<bool> {
        let extended = self.extend(claim, token).await;
        if matches!(&extended, Ok(true)) || extended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Ambiguous) {
            self.remember(claim, token);
        }
        extended
    }

    /// This is what the hold is from now on.
    pub(crate) fn remember(&self, claim: &Claim, token: FencingToken) {
        let mut holds = self.holds();
        let was_shared = holds.get(&claim.id).is_some_and(|held| held.claim.mode == Mode::Shared);
        let mut claim = claim.clone();
        if was_shared {
            claim.mode = Mode::Shared;
        }
        holds.insert(claim.id, Held { token, claim: Arc::new(claim) });
    }

    pub(crate) async fn keep(self: &Arc<Self>, leases: &[LeaseRef]) -> Vec<Renewal> {
        let sent = Moment::now();
        let (mut held, mut calls) = (Vec::new(), Vec::new());
        for LeaseRef { claim, .. } in leases.iter().filter(|lease| lease.token.is_some()) {
            // The label is the renewal's. The mode is ours: whether it was made shared, only the claim's own answer says.
            let relabelled = self.holds().get_mut(&claim.id).map(|held| {
                if held.claim.label != claim.label {
                    Arc::make_mut(&mut held.claim).label = claim.label.clone();
                }
                held.clone()
            });
            let Some(Held { token, claim }) = relabelled else { continue };
            // Numbered before the look: so whatever is released after it has the greater number.
            let call = self.keep_call(&claim, token, "keep");
            if self.held(claim.id).is_some() {
                held.push(claim.id);
                calls.push(call);
            }
        }
        let mut counts: Vec<Count> = held.iter().map(|_| Count::default()).collect();
        let flight = self.count(&mut counts, calls).await;
        let mut verdicts: HashMap<ClaimId, _> = HashMap::with_capacity(held.len());
        for (id, count) in held.iter().zip(&mut counts) {
            let verdict = count.verdict(&self.nodes);
            verdicts.insert(*id, verdict.ok_or_else(|| self.nodes.failure(std::mem::take(&mut count.failed))));
        }
        self.top_up_later(held, counts, flight);
        let renewal = |LeaseRef { claim, token, .. }: &LeaseRef| match (token, verdicts.get(&claim.id)) {
            // A claim that waits has no place to renew: it comes back by itself, sooner than a lease.
            (None, _) | (_, Some(Ok(true))) => Renewal::Renewed(Validity::since(sent, lease(claim))),
            (_, Some(Err(e))) => Renewal::Unknown(again(e)),
            // A hold that is not among ours was released.
            (_, Some(Ok(false)) | None) => Renewal::Lost(Loss::Gone),
        };
        leases.iter().map(renewal).collect()
    }

    /// Sends these to every node, one for each count, and counts until all is certain.
    async fn count(&self, counts: &mut [Count], calls: Vec<Call>) -> Flight<Vec<Result<Value>>> {
        let mut flight = if calls.is_empty() { Flight::new() } else { self.nodes.send_all(calls) };
        hear(&mut flight, |node, answers| {
            counts.iter_mut().zip(answers).for_each(|(count, answer)| count.enter(node, answer));
            counts.iter().all(|count| count.verdict(&self.nodes).is_some())
        })
        .await;
        flight
    }

    /// Gives the holds that a majority has to the nodes that lost them or never had them, once these have answered.
    fn top_up_later(
        self: &Arc<Self>,
        held: Vec<ClaimId>,
        mut counts: Vec<Count>,
        mut flight: Flight<Vec<Result<Value>>>,
    ) {
        if flight.is_empty() && counts.iter().all(|count| count.gone.is_empty()) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            hear(&mut flight, |node, answers| {
                counts.iter_mut().zip(answers).for_each(|(count, answer)| count.enter(node, answer));
                false
            })
            .await;
            for node in 0..store.nodes.len() {
                let lacks = |count: &Count| count.verdict(&store.nodes) == Some(true) && count.gone.contains(&node);
                let lacking = held.iter().zip(&counts).filter(|(_, count)| lacks(count));
                let calls = lacking.filter_map(|(id, _)| {
                    // As it is by now, and numbered before the last look.
                    let Held { token, claim } = store.held(*id)?;
                    let call = store.keep_call(&claim, token, "top");
                    store.held(*id).map(|_| call)
                });
                let calls: Vec<Call> = calls.collect();
                store.nodes.tell(node, calls).await;
            }
        });
    }

    /// Removes every trace of a claim, on every node. A majority's word is enough: the others have been told too.
    pub(crate) async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.holds().remove(&claim.id);
        self.nodes.majority_of(self.nodes.send(self.release_call(claim, Release::ForGood)), false).await.map(drop)
    }

    /// Lets a hold end by itself, on every node.
    pub(crate) async fn let_lapse(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.holds().remove(&claim.id);
        let rest = leasehold_redis_client::granted_ttl(rest, Duration::from_millis(1));
        let call = self.call("lapse", claim).arg(rest.as_millis());
        self.nodes.majority_of(self.nodes.send(call), false).await.map(drop)
    }

    /// Ends what was taken up to now, and nothing that is taken later.
    pub(crate) fn release_call(&self, claim: &Claim, what: Release) -> Call {
        self.call("release", claim).arg(what as u8)
    }

    /// This hold, if it is one of ours.
    pub(crate) fn held(&self, id: ClaimId) -> Option<Held> {
        self.holds().get(&id).cloned()
    }

    pub(crate) fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Held>> {
        locked(&self.holds)
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
