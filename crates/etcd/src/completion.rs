//! Completions: the records that work is done.
//!
//! A completion is one key for each name, beside all queues. One transaction compares that the
//! place of the hold is still the one that was granted, deletes it and writes the completion,
//! unless one that counts is there already (see [`Once`]). The key has a lease of its own, which is
//! granted just before and never renewed, and no lease if it counts for ever.

pub(crate) mod leases;
pub(crate) mod record;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use leasehold_core::backend::{Claim, Complete, Completed, Moment, token_of_place};
use leasehold_core::{Completion, Error, ErrorKind, FencingToken, Keep, Name, Result};

use crate::AT_ONCE;
use crate::claim::once::{Looked, Once, first};
use crate::claim::own::OwnClaim;
use crate::claim::shared::Shared;
use crate::client::cluster::{Answer, put};
use crate::client::sessions::seconds;
use crate::completion::leases::Lease;
use crate::completion::record::Record;
use crate::error::Failure;

/// The time by which the lease of a completion is longer than its keep, which begins later.
const MARGIN: Duration = Duration::from_secs(1);
/// The number of times that one call begins anew after the lease has ended before it was used.
const TRIES: usize = 3;
/// The time that the end of an unused lease may take.
const ENDING: Duration = Duration::from_secs(10);

impl Shared {
    pub(crate) async fn complete(
        self: &Arc<Self>,
        claim: &Claim,
        request: &Complete,
    ) -> Result<Completed> {
        let Some(own) = self.held(claim, request.token) else {
            return self.completed_before(claim).await;
        };
        let once = Once::of(&self.keys, &claim.name, claim.once.unwrap_or_default());
        let mut doubt = false;
        for _ in 0..TRIES {
            let lease = self.lease_of_keep(claim, request.keep).await;
            let lease = lease.map_err(|failure| instead(doubt, failure))?;
            let record = Record::new(claim, request, SystemTime::now());
            let is_there = own.key.was_created(own.created);
            let write = writing(&own, &once, lease, &record);
            let txn = once.around(&own, vec![is_there], write, Vec::new());
            let Answer {
                outcome,
                doubt: unanswered,
            } = self.cluster.txn(txn).await;
            doubt |= unanswered;
            let failure = match outcome.and_then(Once::looked) {
                Ok(looked) => {
                    let written = (record, lease);
                    return self.completed(claim, &own, looked, written, doubt).await;
                }
                Err(failure) => failure,
            };
            // An answer that cannot be read says nothing, either.
            doubt |= failure.kind == ErrorKind::Ambiguous;
            if let Some(lease) = lease.filter(|_| !unanswered && !doubt) {
                // Surely no completion has it.
                self.leases.forget(claim.id, lease.id);
                self.end_leases([lease.id]);
            }
            if failure.kind != ErrorKind::Lost {
                return Err(instead(doubt, failure.into()));
            }
        }
        Err(instead(
            doubt,
            Error::new(
                ErrorKind::Unavailable,
                "the leases of the completion end at once; ask again",
            ),
        ))
    }

    /// The record of this claim, if it holds with this token.
    fn held(&self, claim: &Claim, token: FencingToken) -> Option<OwnClaim> {
        let mut claims = self.claims();
        let own = claims.get(&claim.name, claim.id)?;
        let holds = own.granted && own.created != 0 && token_of_place(own.number()) == token;
        holds.then(|| own.clone())
    }

    /// Gets the lease of a new completion; `None` for one that counts for ever.
    async fn lease_of_keep(&self, claim: &Claim, keep: Keep) -> Result<Option<Lease>> {
        let Keep::For(keep) = keep else {
            return Ok(None);
        };
        let seconds = seconds(keep.saturating_add(MARGIN))?;
        let lease = self.leases.begin(claim.id, Duration::from_secs(seconds));
        let granted = self.cluster.grant(lease.id, seconds).await;
        granted.map(|()| Some(lease)).map_err(|failure| {
            // If it may have been granted, the answer to a later request ends it.
            if failure.kind != ErrorKind::Ambiguous {
                self.leases.forget(claim.id, lease.id);
            }
            failure.of_a_read().into()
        })
    }

    /// Answers a request from what its transaction has found.
    async fn completed(
        self: &Arc<Self>,
        claim: &Claim,
        own: &OwnClaim,
        looked: Looked,
        (record, lease): (Record, Option<Lease>),
        doubt: bool,
    ) -> Result<Completed> {
        let now = SystemTime::now();
        match looked {
            Looked::Done(done) => {
                let before = Record::read(done.value()).map_err(|e| e.with_name(&claim.name))?;
                if before.id == claim.id {
                    self.has_ended(claim, own);
                    self.end_leases(self.leases.settle(claim.id, Some(done.lease())));
                    return Ok(Completed::Done(before.shown(now)));
                }
            }
            Looked::NotDone(inner, earlier) if inner.succeeded() => {
                self.has_ended(claim, own);
                let used = lease.map(|lease| lease.id);
                self.end_leases(self.leases.settle(claim.id, used));
                self.end_leases(earlier.map(|earlier| earlier.lease()));
                if let Some(lease) = lease
                    && Moment::now().since(lease.asked) > MARGIN
                {
                    // The transaction may have come so late that the lease would end too soon.
                    drop(self.cluster.begin_anew(lease.id).await);
                }
                return Ok(Completed::Done(record.shown(now)));
            }
            Looked::NotDone(..) => {}
        }
        // The place is gone, so no request on its way writes a completion any more.
        self.end_leases(self.leases.settle(claim.id, None));
        if doubt {
            // An attempt may have written one that was forgotten since.
            return Err(Error::new(
                ErrorKind::Ambiguous,
                "etcd did not answer at first, and has no record of it now",
            ));
        }
        Ok(Completed::NotHeld)
    }

    /// Answers a request of a claim that does not hold: it may have been completed before.
    async fn completed_before(self: &Arc<Self>, claim: &Claim) -> Result<Completed> {
        let Some((before, lease)) = self.recorded_completion(&claim.name).await? else {
            return Ok(Completed::NotHeld);
        };
        if before.id != claim.id {
            return Ok(Completed::NotHeld);
        }
        self.end_leases(self.leases.settle(claim.id, Some(lease)));
        // The record of the claim, if a renewal has seen that its place is gone.
        drop(self.release(&claim.name, claim.id).await);
        Ok(Completed::Done(before.shown(SystemTime::now())))
    }

    /// Forgets the claim, whose place was deleted with its completion.
    fn has_ended(&self, claim: &Claim, own: &OwnClaim) {
        let mut claims = self.claims();
        // A renewal may have seen already that it is gone.
        let ended = claims
            .get(&claim.name, claim.id)
            .filter(|now| [0, own.created].contains(&now.created))
            .map(OwnClaim::begin_release);
        if let Some(ended) = ended {
            claims.remove_released(&claim.name, &ended);
        }
    }

    /// Ends leases that nobody uses, in the background. One that is not ended ends by itself.
    fn end_leases(self: &Arc<Self>, leases: impl IntoIterator<Item = i64>) {
        for lease in leases.into_iter().filter(|lease| *lease != 0) {
            let cluster = &self.cluster;
            self.ending.begin(lease, ENDING, || {
                let cluster = cluster.clone();
                async move { drop(cluster.end_lease(lease).await) }
            });
        }
    }

    /// Waits until the leases that nobody uses are ended.
    pub(crate) async fn leases_ended(&self) {
        self.ending.settle(self.cluster.config.timeout).await;
    }

    /// The completion of this name as it is stored, and its lease.
    pub(crate) async fn recorded_completion(&self, name: &Name) -> Result<Option<(Record, i64)>> {
        let read = self.read_completion(name).await?;
        read.map(|kv| recorded(name, &kv)).transpose()
    }

    async fn read_completion(&self, name: &Name) -> Result<Option<KeyValue>, Failure> {
        let key = self.keys.completion(name);
        Ok(first(&self.cluster.get(&*key, GetOptions::new()).await?))
    }

    pub(crate) async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let recorded = self.recorded_completion(name).await?;
        Ok(recorded.map(|(record, _)| record.shown(SystemTime::now())))
    }

    pub(crate) async fn forget(self: &Arc<Self>, name: &Name, token: FencingToken) -> Result<bool> {
        let Some(kv) = self.read_completion(name).await? else {
            return Ok(false);
        };
        let (record, lease) = recorded(name, &kv)?;
        if record.token() != token {
            return Ok(false);
        }
        let same = Compare::mod_revision(kv.key(), CompareOp::Equal, kv.mod_revision());
        let delete = TxnOp::delete(kv.key(), None);
        let Answer { outcome, doubt } = self
            .cluster
            .txn(Txn::new().when([same]).and_then([delete]))
            .await;
        // After an attempt without an answer the completion is gone all the same, and it was there.
        let was_there = outcome?.succeeded() || doubt;
        if was_there {
            self.end_leases([lease]);
        }
        Ok(was_there)
    }

    /// Reads all keys under the prefix, whose order is not that of the names, and then the
    /// completions that are asked for.
    pub(crate) async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let mut names = BTreeSet::new();
        let visit = |key: &str| {
            let name = self.keys.name_of_completion(key);
            names.extend(name.filter(|name| after.is_none_or(|after| name > after)));
        };
        self.cluster
            .keys(&self.keys.completions(prefix), visit)
            .await?;
        let names: Vec<Name> = names.into_iter().take(limit).collect();
        let mut all = Vec::with_capacity(names.len());
        for names in names.chunks(AT_ONCE) {
            let reads: Vec<TxnOp> = names
                .iter()
                .map(|name| TxnOp::get(&*self.keys.completion(name), None))
                .collect();
            let answer = self.cluster.txn(Txn::new().and_then(reads)).await;
            let response = answer.outcome.map_err(Failure::of_a_read)?;
            let now = SystemTime::now();
            for (name, read) in names.iter().zip(response.op_responses()) {
                let TxnOpResponse::Get(read) = read else {
                    continue;
                };
                // It may have ended since its key was seen.
                if let Some(kv) = first(&read) {
                    all.push((name.clone(), recorded(name, &kv)?.0.shown(now)));
                }
            }
        }
        Ok(all)
    }
}

/// The operations that end the hold and write the completion.
fn writing(own: &OwnClaim, once: &Once, lease: Option<Lease>, record: &Record) -> Vec<TxnOp> {
    let lease = lease.map_or(0, |lease| lease.id);
    let mut then = vec![own.key.delete(), put(lease, &once.key, record.write())];
    if own.doubt {
        // A late request of the claim would create the place once more when the keep has passed.
        own.session().close();
        then.push(own.session().closing());
    }
    then
}

fn recorded(name: &Name, kv: &KeyValue) -> Result<(Record, i64)> {
    let record = Record::read(kv.value()).map_err(|e| e.with_name(name))?;
    Ok((record, kv.lease()))
}

/// The error of a request of which an earlier attempt may have been executed.
fn instead(doubt: bool, e: Error) -> Error {
    if doubt && e.kind() == ErrorKind::Unavailable {
        Error::new(ErrorKind::Ambiguous, e.to_string())
    } else {
        e
    }
}
