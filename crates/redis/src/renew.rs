//! `renew`: many leases in one step, exclusive holds in the shortest way.

use crate::link::{
    Call, Cluster, Connection, Fields, again, attempt, junk, record, run_all, slot_of,
};
use leasehold_core::backend::{LeaseRef, Mode, Moment, Renewal, Validity};
use leasehold_core::{ErrorKind, FencingToken, Loss, Result};
use redis::Value;

use crate::client::nodes::Nodes;
use crate::scripts::{EXTEND, RENEW, RENEW_ONE};
use crate::{AT_ONCE, Redis, entry};

impl Redis {
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let connection = match &*self.nodes {
            Nodes::One(connection) => connection,
            Nodes::Many(cluster) => return self.renew_each(cluster, leases).await,
        };
        // The leases of one script have one length.
        let mut all: Vec<(usize, &LeaseRef)> = leases.iter().enumerate().collect();
        all.sort_by_key(|(_, lease)| lease.claim.ttl);
        let alike = all.chunk_by(|(_, one), (_, other)| one.claim.ttl == other.claim.ttl);
        let some: Vec<_> = alike.flat_map(|alike| alike.chunks(AT_ONCE)).collect();
        let mut renewals = Vec::with_capacity(leases.len());
        for (some, answer) in some.iter().zip(self.renew_in(connection, &some).await) {
            match answer {
                Ok(answers) => renewals.extend(some.iter().map(|(i, _)| *i).zip(answers)),
                // There was no answer, or none in time. Any other refusal may concern only one key,
                // so each lease is tried alone.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Ambiguous
                            | ErrorKind::Unavailable
                            | ErrorKind::OtherStore
                            | ErrorKind::Closed
                            | ErrorKind::NoRuntime
                    ) =>
                {
                    renewals.extend(some.iter().map(|(i, _)| (*i, Renewal::Unknown(again(&e)))));
                }
                Err(_) => {
                    let each: Vec<_> = some.chunks(1).collect();
                    let answers = self.renew_in(connection, &each).await.into_iter();
                    let one = |answer: Result<Vec<Renewal>>| {
                        answer.unwrap_or_else(|e| vec![Renewal::Unknown(e)])
                    };
                    renewals.extend(some.iter().map(|(i, _)| *i).zip(answers.flat_map(one)));
                }
            }
        }
        renewals.sort_unstable_by_key(|(i, _)| *i);
        renewals.into_iter().map(|(_, renewal)| renewal).collect()
    }

    /// Renews these leases, one script for each list of equal length. Returns the outcomes for each
    /// script.
    async fn renew_in(
        &self,
        connection: &Connection,
        scripts: &[&[(usize, &LeaseRef)]],
    ) -> Vec<Result<Vec<Renewal>>> {
        let sent = Moment::now();
        let call = |some: &&[(usize, &LeaseRef)]| {
            let ttl = some
                .first()
                .map_or(0, |(_, lease)| entry::ttl(&lease.claim).as_millis());
            let call = self.on_all(&RENEW, some.iter().map(|(_, lease)| &lease.claim.name));
            some.iter()
                .fold(call.arg(ttl).arg(attempt(sent)), |call, (_, lease)| {
                    start(call, lease)
                })
        };
        let calls: Vec<Call> = scripts.iter().map(call).collect();
        let answers = run_all(connection, &calls).await;
        let renewals = scripts
            .iter()
            .zip(answers)
            .map(|(some, answer)| match answer {
                Ok(Value::Array(answers)) if answers.len() == some.len() => {
                    let renewal = |((_, lease), answer): (&(usize, &LeaseRef), &Value)| {
                        self.renewal(lease, answer, sent)
                            .unwrap_or_else(Renewal::Unknown)
                    };
                    Ok(some.iter().zip(&answers).map(renewal).collect())
                }
                answer => Err(answer
                    .err()
                    .unwrap_or_else(|| junk("the answer to renewals"))),
            });
        renewals.collect()
    }

    /// Renews in a Cluster, where each lease has a script of its own. An exclusive hold is first
    /// tried with a script of one key, which also runs while its slot is being moved, however long
    /// that takes.
    async fn renew_each(&self, cluster: &Cluster, leases: &[LeaseRef]) -> Vec<Renewal> {
        let sent = Moment::now();
        let lock = |lease: &LeaseRef| self.names.lock(&lease.claim.name);
        let extend = |lease: &LeaseRef| {
            let lock = lock(lease);
            let ttl = entry::ttl(&lease.claim).as_millis();
            (
                slot_of(&lock),
                start(Call::of(&EXTEND, 1).arg(&lock), lease).arg(ttl),
            )
        };
        let renew = |lease: &LeaseRef| {
            let claim = &lease.claim;
            let token = lease.token.map_or(0, FencingToken::get);
            let call = self
                .call(&RENEW_ONE, claim)
                .arg(entry::ttl(claim).as_millis())
                .arg(attempt(sent))
                .arg(token);
            (slot_of(&lock(lease)), call)
        };
        let mut renewals: Vec<Option<Renewal>> = leases.iter().map(|_| None).collect();
        let is_hold =
            |i: &usize| leases[*i].token.is_some() && leases[*i].claim.mode == Mode::Exclusive;
        let (holds, others): (Vec<usize>, Vec<usize>) = (0..leases.len()).partition(is_hold);
        let all = async |some: &[usize], call: &(dyn Fn(&LeaseRef) -> (u16, Call) + Sync)| {
            let calls: Vec<_> = some.iter().map(|i| call(&leases[*i])).collect();
            cluster.run_all(&calls).await
        };
        let extended = all(&holds, &extend).await;
        let mut rest = others;
        for (i, answer) in holds.into_iter().zip(extended) {
            match answer {
                Ok(Value::Int(0)) => rest.push(i),
                answer => {
                    let renewal = answer.and_then(|answer| self.renewal(&leases[i], &answer, sent));
                    renewals[i] = Some(renewal.unwrap_or_else(Renewal::Unknown));
                }
            }
        }
        let renewed = all(&rest, &renew).await;
        for (i, answer) in rest.into_iter().zip(renewed) {
            let renewal = answer.and_then(|answer| self.renewal(&leases[i], &answer, sent));
            if matches!(renewal, Ok(Renewal::Lost(_))) {
                // The node may have been emptied, and set up as a Cluster of its own.
                cluster.suspect(slot_of(&lock(&leases[i])));
            }
            renewals[i] = Some(renewal.unwrap_or_else(Renewal::Unknown));
        }
        let unknown = || Renewal::Unknown(junk("the answer to renewals"));
        renewals
            .into_iter()
            .map(|renewal| renewal.unwrap_or_else(unknown))
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

/// Adds the text that an exclusive hold's record has after its flag.
fn start(call: Call, LeaseRef { claim, token, .. }: &LeaseRef) -> Call {
    let (token, (kind, n, of)) = (token.map_or(0, FencingToken::get), claim.mode.parts());
    let ttl = entry::ttl(claim).as_millis();
    call.arg(format_args!("{} {token} {kind} {n} {of} {ttl} ", claim.id))
}
