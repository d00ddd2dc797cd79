//! `renew`: many in one step, exclusive holds in the shortest way.

use leasehold_core::seam::{LeaseRef, Moment, Renewal, Validity};
use leasehold_core::{ErrorKind, FencingToken, Loss, Result};
use leasehold_redis_client::{Call, Fields, again, attempt, junk, record, run_all};
use redis::Value;

use crate::scripts::RENEW;
use crate::{AT_ONCE, Redis, entry};

impl Redis {
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(leases.len());
        for (some, answer) in leases.chunks(AT_ONCE).zip(self.renew_in(AT_ONCE, leases).await) {
            match answer {
                Ok(some) => renewals.extend(some),
                // No answer, or none in time. What is refused for all, because of one key, may be done for each.
                Err(e) if matches!(e.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable | ErrorKind::Closed) => {
                    renewals.extend(some.iter().map(|_| Renewal::Unknown(again(&e))));
                }
                Err(_) => {
                    let each = self.renew_in(1, some).await.into_iter();
                    let one = |answer: Result<Vec<Renewal>>| answer.unwrap_or_else(|e| vec![Renewal::Unknown(e)]);
                    renewals.extend(each.flat_map(one));
                }
            }
        }
        renewals
    }

    /// Renews so many with each script. Answers for each script what became of its leases.
    async fn renew_in(&self, at_once: usize, leases: &[LeaseRef]) -> Vec<Result<Vec<Renewal>>> {
        let sent = Moment::now();
        let call = |some: &[LeaseRef]| {
            let call = self.on(&RENEW, some.iter().map(|lease| &lease.claim.name));
            some.iter().fold(call, |call, LeaseRef { claim, token, .. }| {
                let (token, ttl) = (token.map_or(0, FencingToken::get), entry::ttl(claim).as_millis());
                let start = format!("{} {token} {} {ttl} ", claim.id, entry::permits(claim.mode));
                call.arg(start).arg(ttl).arg(attempt(sent))
            })
        };
        let calls: Vec<Call> = leases.chunks(at_once).map(call).collect();
        let answers = run_all(&self.connection, &calls).await;
        let renewals = leases.chunks(at_once).zip(answers).map(|(some, answer)| match answer {
            Ok(Value::Array(answers)) if answers.len() == some.len() => {
                let renewal = |(lease, answer)| self.renewal(lease, answer, sent).unwrap_or_else(Renewal::Unknown);
                Ok(some.iter().zip(&answers).map(renewal).collect())
            }
            answer => Err(answer.err().unwrap_or_else(|| junk("the answer to renewals"))),
        });
        renewals.collect()
    }

    fn renewal(&self, LeaseRef { claim, token, .. }: &LeaseRef, answer: &Value, sent: Moment) -> Result<Renewal> {
        let renewed = Renewal::Renewed(Validity::since(sent, entry::ttl(claim)));
        if *answer == Value::Int(1) {
            return Ok(renewed);
        }
        let answer = record(answer)?;
        let mut fields = Fields::of(&answer);
        match (fields.word(), token) {
            ("granted", None) if self.replicas.is_some() => {
                self.inbox.notifier.claim_again(claim.id);
                Ok(renewed)
            }
            ("granted", None) => Ok(Renewal::Granted(self.grant(claim, &mut fields, sent)?)),
            ("granted" | "waiting", _) => Ok(renewed),
            ("gone", _) => Ok(Renewal::Lost(Loss::Gone)),
            _ => Err(junk("the answer to a renewal")),
        }
    }
}
