//! `renew`: exclusive holds by the shortest script, many in one step; everything else, one by one.

use leasehold_core::seam::{LeaseRef, Mode, Moment, Renewal, Validity};
use leasehold_core::{ErrorKind, FencingToken, Loss, Result};
use leasehold_redis_client::{Call, Fields, again, attempt, junk, record};
use redis::Value;

use crate::scripts::{RENEW, RENEW_EXCLUSIVE};
use crate::{AT_ONCE, Redis, entry};

impl Redis {
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let mut renewals: Vec<Option<Renewal>> = leases.iter().map(|_| None).collect();
        self.renew_exclusive(leases, &mut renewals).await;
        let sent = Moment::now();
        let others: Vec<usize> = (0..leases.len()).filter(|at| renewals[*at].is_none()).collect();
        let call = |at: &usize| {
            let LeaseRef { claim, token, .. } = &leases[*at];
            let token = token.map(|token| token.to_string()).unwrap_or_default();
            self.call(claim).arg(entry::ttl(claim).as_millis()).arg(attempt(sent)).arg(token)
        };
        let calls: Vec<Call> = others.iter().map(call).collect();
        for (at, answer) in others.into_iter().zip(RENEW.run_all(&self.connection, &calls).await) {
            let renewed = answer.and_then(|answer| self.renewal(&leases[at], &record(&answer)?, sent));
            renewals[at] = Some(renewed.unwrap_or_else(Renewal::Unknown));
        }
        let missing = || Renewal::Unknown(junk("the answer to a renewal"));
        renewals.into_iter().map(|renewal| renewal.unwrap_or_else(missing)).collect()
    }

    /// Renews the exclusive holds among these in the shortest way, and says so where that was enough.
    async fn renew_exclusive(&self, leases: &[LeaseRef], renewals: &mut [Option<Renewal>]) {
        let sent = Moment::now();
        let held = |(_, lease): &(usize, &LeaseRef)| lease.claim.mode == Mode::Exclusive && lease.token.is_some();
        let held: Vec<(usize, &LeaseRef)> = leases.iter().enumerate().filter(held).collect();
        let call = |some: &[(usize, &LeaseRef)]| {
            let locks: Vec<String> = some.iter().map(|(_, lease)| self.names.lock(&lease.claim.name)).collect();
            some.iter().fold(Call::on(locks), |call, (_, LeaseRef { claim, token, .. })| {
                let start = format!("{} {} ", claim.id, token.map_or(0, FencingToken::get));
                call.arg(start).arg(entry::ttl(claim).as_millis())
            })
        };
        let calls: Vec<Call> = held.chunks(AT_ONCE).map(call).collect();
        for (some, answer) in held.chunks(AT_ONCE).zip(RENEW_EXCLUSIVE.run_all(&self.connection, &calls).await) {
            // No answer, or none in time. What is refused for all, because of one key, may be done for each.
            if let Err(e) = &answer
                && matches!(e.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable | ErrorKind::Closed)
            {
                some.iter().for_each(|(at, _)| renewals[*at] = Some(Renewal::Unknown(again(e))));
            }
            let Ok(Value::Array(answers)) = answer else { continue };
            for ((at, lease), answer) in some.iter().zip(answers) {
                let validity = Validity::since(sent, entry::ttl(&lease.claim));
                renewals[*at] = (answer == Value::Int(1)).then_some(Renewal::Renewed(validity));
            }
        }
    }

    fn renewal(&self, LeaseRef { claim, token, .. }: &LeaseRef, answer: &str, sent: Moment) -> Result<Renewal> {
        let renewed = Renewal::Renewed(Validity::since(sent, entry::ttl(claim)));
        let mut fields = Fields::of(answer);
        match (fields.word(), token) {
            ("granted", None) if self.replicas.is_some() => {
                self.inbox.notifier.claim_again(claim.id);
                Ok(renewed)
            }
            ("granted", None) => Ok(Renewal::Granted(self.grant(claim, fields, sent)?)),
            ("granted" | "waiting", _) => Ok(renewed),
            ("gone", _) => Ok(Renewal::Lost(Loss::Gone)),
            _ => Err(junk("the answer to a renewal")),
        }
    }
}
