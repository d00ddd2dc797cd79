//! Claims for work that is done once: the look at the completion.
//!
//! The transaction of such a claim first compares the completion's value with the fire of the
//! claim. If the completion counts, it ends the place of the claim, if that is known, and reads the
//! completion; else it does what the transaction of any claim does. One revision therefore shows
//! both that no completion counts and that the place is the first, or neither. A completion is
//! written by a transaction that deletes the first place, so none is written behind that revision
//! while the place is there.
//!
//! For the same reason only an answer to the claim itself grants it. The mirrors may show that it
//! is the first: then it is sent again. Its place takes no turns (see `claim/turns`).
//!
//! A claim that waits watches the completion's key beside the entries before it.

use std::sync::Arc;
use std::time::SystemTime;

use etcd_client::{
    Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use leasehold_core::backend::{Claim, Claimed};
use leasehold_core::{ErrorKind, Name, Result};

use crate::claim::own::OwnClaim;
use crate::claim::shared::Shared;
use crate::client::watch::Range;
use crate::completion::record::{Record, fire_text};
use crate::error::Failure;
use crate::names::Keys;

/// A completion as a claim of this fire, or a request to complete its work, looks at it.
pub(crate) struct Once {
    /// The key of the completion.
    pub(crate) key: Arc<str>,
    fire: u64,
}

/// The answer to a transaction with a look at the completion.
pub(crate) enum Looked {
    /// The completion counts. Nothing else was done, but that the place has ended.
    Done(KeyValue),
    /// It does not count, and the rest of the transaction was carried out, with this answer. The
    /// completion of an earlier fire may be there.
    NotDone(TxnResponse, Option<KeyValue>),
}

impl Once {
    pub(crate) fn of(keys: &Keys, name: &Name, fire: u64) -> Once {
        Once {
            key: keys.completion(name),
            fire,
        }
    }

    /// The transaction that looks at the completion, and if that does not count, does `then` where
    /// all of `when` is true, and else `or_else`. If it counts, the place with the known
    /// create_revision ends.
    ///
    /// A missing key has no value that could be compared, so a first branch is for that. It is also
    /// why a server that is full refuses the transaction: it does not count what is written inside
    /// of another one.
    pub(crate) fn around(
        &self,
        own: &OwnClaim,
        when: Vec<Compare>,
        then: Vec<TxnOp>,
        or_else: Vec<TxnOp>,
    ) -> Txn {
        let mut none = vec![Compare::create_revision(&*self.key, CompareOp::Equal, 0)];
        none.extend(when.iter().cloned());
        let counts = Compare::value(&*self.key, CompareOp::Greater, fire_text(self.fire));
        let mut ends = Vec::new();
        if own.created != 0 {
            let is_there = own.key.was_created(own.created);
            let delete = Txn::new().when([is_there]).and_then([own.key.delete()]);
            ends.push(TxnOp::txn(delete));
        }
        let inner = Txn::new()
            .when(when)
            .and_then(then.clone())
            .or_else(or_else);
        let look = Txn::new()
            .when([counts])
            .and_then(ends)
            .or_else([TxnOp::txn(inner)]);
        let read = TxnOp::get(&*self.key, None);
        Txn::new()
            .when(none)
            .and_then(then)
            .or_else([read, TxnOp::txn(look)])
    }

    /// Reads the answer of such a transaction.
    pub(crate) fn looked(response: TxnResponse) -> Result<Looked, Failure> {
        if response.succeeded() {
            return Ok(Looked::NotDone(response, None));
        }
        let mut parts = response.op_responses().into_iter();
        let looked = match (parts.next(), parts.next()) {
            (Some(TxnOpResponse::Get(read)), Some(TxnOpResponse::Txn(look))) => {
                let read = first(&read);
                match look.op_responses().into_iter().next() {
                    _ if look.succeeded() => read.map(Looked::Done),
                    Some(TxnOpResponse::Txn(inner)) => Some(Looked::NotDone(inner, read)),
                    _ => None,
                }
            }
            _ => None,
        };
        looked.ok_or_else(|| {
            Failure::new(
                ErrorKind::Ambiguous,
                "the answer has not the parts that were asked for",
            )
        })
    }
}

/// The key that was read.
pub(crate) fn first(read: &GetResponse) -> Option<KeyValue> {
    read.kvs().first().cloned()
}

impl Shared {
    /// The look of this claim at the completion, if it is for work that is done once.
    pub(crate) fn once(&self, claim: &Claim) -> Option<Once> {
        claim
            .once
            .map(|fire| Once::of(&self.keys, &claim.name, fire))
    }

    /// Looks at the completion before there is a session: where the work is done, no lease is
    /// needed. A claim that may have a place is sent at once.
    pub(crate) async fn look_first(self: &Arc<Self>, claim: &Claim) -> Result<Option<Claimed>> {
        let is_new = || self.claims().get(&claim.name, claim.id).is_none();
        let Some(fire) = claim
            .once
            .filter(|_| is_new() && !self.sessions.is_ready(claim.ttl))
        else {
            return Ok(None);
        };
        self.cluster.open()?;
        let done = self.recorded_completion(&claim.name).await?;
        let now = SystemTime::now();
        Ok(done
            .map(|(record, _)| record.shown(now))
            .filter(|done| done.counts_for(fire))
            .map(Claimed::Done))
    }

    /// Answers a claim for which this completion counts. Its place has ended, if it was known.
    pub(crate) async fn answer_done(
        self: &Arc<Self>,
        claim: &Claim,
        own: &OwnClaim,
        done: &KeyValue,
    ) -> Result<Claimed> {
        if let Some(now) = self
            .claims()
            .get(&claim.name, claim.id)
            .filter(|now| now.created == own.created)
        {
            now.set_created(0);
        }
        // A request of it that stayed unanswered may have left a place, or may come later.
        self.release(&claim.name, claim.id).await?;
        let record = Record::read(done.value()).map_err(|e| e.with_name(&claim.name))?;
        Ok(Claimed::Done(record.shown(SystemTime::now())))
    }

    /// Watches the completion for a claim that waits.
    pub(crate) fn watch_completion(&self, claim: &Claim) {
        if claim.once.is_none() {
            return;
        }
        let range = Range::Key(self.keys.completion(&claim.name));
        let mirror = self.mirrors.follow(range);
        let mut claims = self.claims();
        if let Some(once) = claims
            .get(&claim.name, claim.id)
            .and_then(|own| own.once.as_mut())
        {
            once.completion = Some(mirror);
        }
        // It may have been recorded since the claim was answered.
        self.report_completion(&mut claims, &claim.name);
    }
}
