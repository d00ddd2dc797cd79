//! `renew`: many leases in one step, exclusive holds in the shortest way.

use std::iter::zip;

use crate::link::{Call, Fields, again, attempt, junk, record, slot_of};
use leasehold_core::backend::{Claim, LeaseRef, Mode, Moment, Renewal, Validity};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Result};
use redis::Value;

use crate::client::nodes::Nodes;
use crate::scripts::{EXTEND, RENEW};
use crate::{AT_ONCE, Redis, entry};

impl Redis {
    /// Exclusive holds are first tried with a script for their locks alone. In a Cluster it also
    /// runs while a slot is being moved, however long that takes.
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let sent = Moment::now();
        let is_hold =
            |i: &usize| leases[*i].token.is_some() && leases[*i].claim.mode == Mode::Exclusive;
        let (holds, others): (Vec<usize>, Vec<usize>) = (0..leases.len()).partition(is_hold);
        let claim = |i: &usize| -> &Claim { &leases[*i].claim };
        let extend = |some: &[usize]| {
            let claims = some.iter().map(claim);
            let call = Call::of(&EXTEND, some.len()).names(some.len());
            let call = claims
                .clone()
                .fold(call, |call, claim| call.arg(self.names.lock(&claim.name)))
                .arg(ttl_of(claims));
            some.iter().fold(call, |call, i| start(call, &leases[*i]))
        };
        let renew = |some: &[usize]| {
            let claims = some.iter().map(claim);
            let call = self.on_all(&RENEW, claims.clone().map(|claim| &claim.name));
            let call = call.arg(ttl_of(claims)).arg(attempt(sent));
            some.iter().fold(call, |call, i| start(call, &leases[*i]))
        };
        let (extended, mut renewed) = tokio::join!(
            self.in_batches(leases, holds, &extend),
            self.in_batches(leases, others, &renew)
        );
        let mut rest = Vec::new();
        for (i, answer) in extended {
            match answer {
                Ok(Value::Int(0)) => rest.push(i),
                answer => renewed.push((i, answer)),
            }
        }
        renewed.extend(self.in_batches(leases, rest, &renew).await);
        renewed.sort_unstable_by_key(|(i, _)| *i);
        let renewal = |(i, answer): (usize, Result<Value>)| {
            let renewal = answer.and_then(|answer| self.renewal(&leases[i], &answer, sent));
            if let (Ok(Renewal::Lost(_)), Nodes::Many(cluster)) = (&renewal, &*self.nodes) {
                // The node may have been emptied, and set up as a Cluster of its own.
                cluster.suspect(slot_of(&self.names.lock(&leases[i].claim.name)));
            }
            renewal.unwrap_or_else(Renewal::Unknown)
        };
        renewed.into_iter().map(renewal).collect()
    }

    /// Runs scripts for these leases. Those of one script have one length. Returns the answer for
    /// each lease.
    async fn in_batches(
        &self,
        leases: &[LeaseRef],
        mut which: Vec<usize>,
        call: &(dyn Fn(&[usize]) -> Call + Sync),
    ) -> Vec<(usize, Result<Value>)> {
        let at_once = match &*self.nodes {
            Nodes::One(_) => AT_ONCE,
            Nodes::Many(_) => 1,
        };
        which.sort_by_key(|i| leases[*i].claim.ttl);
        let alike = which.chunk_by(|one, other| leases[*one].claim.ttl == leases[*other].claim.ttl);
        let scripts: Vec<_> = alike.flat_map(|alike| alike.chunks(at_once)).collect();
        let mut answers = Vec::with_capacity(which.len());
        for (some, answer) in zip(&scripts, self.run_scripts(leases, &scripts, call).await) {
            match answer {
                Ok(each) => answers.extend(zip(some.iter().copied(), each.into_iter().map(Ok))),
                Err(e) if some.len() == 1 || is_of_all(&e) => {
                    answers.extend(some.iter().map(|i| (*i, Err(again(&e)))));
                }
                // The refusal may concern only one key.
                Err(_) => {
                    let alone: Vec<_> = some.chunks(1).collect();
                    let each = self.run_scripts(leases, &alone, call).await;
                    let each = each
                        .into_iter()
                        .map(|one| Ok(one?.pop().unwrap_or_default()));
                    answers.extend(zip(some.iter().copied(), each));
                }
            }
        }
        answers
    }

    /// Runs one script for each of these lists of leases. Returns the answers for each script.
    async fn run_scripts(
        &self,
        leases: &[LeaseRef],
        scripts: &[&[usize]],
        call: &(dyn Fn(&[usize]) -> Call + Sync),
    ) -> Vec<Result<Vec<Value>>> {
        let lock = |some: &[usize]| {
            let first = some.first();
            first.map_or_else(String::new, |i| self.names.lock(&leases[*i].claim.name))
        };
        let calls = scripts.iter().map(|some| (call(some), lock(some)));
        let answers = self.nodes.run_all(calls.collect()).await;
        zip(scripts, answers)
            .map(|(some, answer)| match answer? {
                Value::Array(answers) if answers.len() == some.len() => Ok(answers),
                _ => Err(junk("the answer to renewals")),
            })
            .collect()
    }

    fn renewal(
        &self,
        LeaseRef { claim, token, .. }: &LeaseRef,
        answer: &Value,
        sent: Moment,
    ) -> Result<Renewal> {
        let renewed = Renewal::Renewed(Validity::since(sent, entry::ttl(claim)));
        if *answer == Value::Int(1) {
            return Ok(renewed);
        }
        let answer = record(answer)?;
        let mut fields = Fields::of(&answer);
        match (fields.word(), token) {
            ("granted", known) => {
                let grant = self.grant(claim, &mut fields, sent)?;
                if *known == Some(grant.token) {
                    return Ok(renewed);
                }
                // The claim was granted while it waited, or its token was raised meanwhile. The
                // answer to a claim tells whether the replicas have that.
                if self.replicas.is_some() {
                    self.inbox.notifier.claim_again(claim.id);
                    return Ok(renewed);
                }
                Ok(Renewal::Granted(grant))
            }
            ("waiting", _) => Ok(renewed),
            ("gone", _) => Ok(Renewal::Lost(Loss::Gone)),
            _ => Err(junk("the answer to a renewal")),
        }
    }
}

/// The length of these leases in milliseconds, which is that of the first.
fn ttl_of<'a>(mut claims: impl Iterator<Item = &'a Claim>) -> u128 {
    claims
        .next()
        .map_or(0, |claim| entry::ttl(claim).as_millis())
}

/// Returns whether the failure concerns all requests: there was no answer, or none in time.
fn is_of_all(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Ambiguous
            | ErrorKind::Unavailable
            | ErrorKind::OtherStore
            | ErrorKind::Closed
            | ErrorKind::NoRuntime
    )
}

/// Adds the text that the record of an exclusive hold has after its flag.
fn start(call: Call, LeaseRef { claim, token, .. }: &LeaseRef) -> Call {
    let (token, (kind, n, of)) = (token.map_or(0, FencingToken::get), claim.mode.parts());
    let ttl = entry::ttl(claim).as_millis();
    call.arg(format_args!("{} {token} {kind} {n} {of} {ttl} ", claim.id))
}
