//! Several names in one script.

use leasehold_core::Result;
use leasehold_core::seam::{Claim, ClaimedAll, Moment};
use leasehold_redis_client::{Ahead, Call, Fields, attempt, junk, lease, record};
use redis::Value;

use super::permits;
use crate::scripts::SEVERAL;
use crate::{MIN_TTL, Redis};

impl Redis {
    /// All of these, which differ in their names and ids only, or none.
    pub(crate) async fn take_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let Some(first) = claims.first() else { return Ok(ClaimedAll::Granted(Vec::new())) };
        let ((kind, n, of), ttl, sent) = (permits(first.mode), lease(first.ttl, MIN_TTL), Moment::now());
        let keys: Vec<String> = claims.iter().flat_map(|claim| self.names.keys(&claim.name)).collect();
        let call = Call::on(keys).arg(0).arg(ttl.as_millis()).arg(1).arg(attempt(sent)).arg(format!("{kind} {n} {of}"));
        let call = call.arg(self.inbox.channel()).arg(&first.label);
        let call = claims.iter().fold(call, |call, claim| call.arg(claim.id));
        let unknown = || junk("the answer to several claims");
        let Value::Array(answers) = self.run(&SEVERAL, &call).await? else { return Err(unknown()) };
        if let [refusal, Value::Int(at)] = &answers[..] {
            let refusal = record(refusal)?;
            let mut fields = Fields::of(&refusal);
            fields.word();
            return Ok(ClaimedAll::Busy(usize::try_from(*at).map_err(|_| unknown())?, Ahead::of(fields)?.who));
        }
        let grant = |(claim, answer)| {
            let answer = record(answer)?;
            let mut fields = Fields::of(&answer);
            if fields.word() == "granted" { self.grant(claim, fields, sent, ttl) } else { Err(unknown()) }
        };
        let grants = claims.iter().zip(&answers).map(grant).collect::<Result<Vec<_>>>()?;
        if let Some(replicas) = &self.replicas {
            replicas.acknowledge().await?;
        }
        Ok(ClaimedAll::Granted(grants))
    }
}
