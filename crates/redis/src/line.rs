//! The three verbs: claim, renew, release.

mod several;

use std::time::Duration;

use leasehold_core::seam::{Claim, Claimed, Grant, Mode, Moment, Place, Queue, Renewal, Tenure, Validity, Waiting};
use leasehold_core::{Error, Loss, Result};
use leasehold_redis_client::{Ahead, Call, Fields, attempt, junk, lease, record};

use crate::scripts::{CLAIM, RELEASE, RENEW};
use crate::{MIN_TTL, Redis};

/// Tokens that a fast claim reserves for turns.
const TURNS: u32 = 64;
/// How often the first in line looks at another tool's lock, whose release tells nobody.
const FOREIGN: Duration = Duration::from_millis(250);
/// How far apart those in line look when a holder died, by their place.
const SPREAD: Duration = Duration::from_millis(2);

impl Redis {
    pub(crate) async fn take(&self, claim: &Claim) -> Result<Claimed> {
        let ((kind, n, of), ttl) = (permits(claim.mode), lease(claim.ttl, MIN_TTL));
        let turns = if claim.queue == Queue::Fast { TURNS } else { 1 };
        let sent = Moment::now();
        let call = self.call(claim).arg(u8::from(claim.queue != Queue::Try)).arg(ttl.as_millis()).arg(turns);
        let call = call.arg(attempt(sent)).arg(format!("{kind} {n} {of}")).arg(self.inbox.channel()).arg(&claim.label);
        let answer = CLAIM.run(&self.connection, &call).await?;
        let answer = record(&answer)?;
        let mut fields = Fields::of(&answer);
        match fields.word() {
            "granted" => {
                let grant = self.grant(claim, fields, sent, ttl)?;
                if let Some(replicas) = &self.replicas {
                    replicas.acknowledge().await?;
                }
                Ok(Claimed::Granted(grant))
            }
            "busy" => Ok(Claimed::Busy(Ahead::of(fields)?.who)),
            "differ" => Err(Error::permits_differ(fields.value()?, of)),
            "waiting" => {
                let ahead = Ahead::of(fields)?;
                let nap = nap(&ahead, ttl);
                Ok(Claimed::Waiting(Waiting::new(self.place(claim), ahead.who).look_again(nap)))
            }
            _ => Err(junk("the answer to a claim")),
        }
    }

    pub(crate) async fn keep(&self, tenures: &[Tenure]) -> Vec<Renewal> {
        let sent = Moment::now();
        let call = |tenure: &Tenure| {
            let token = tenure.token.map(|t| t.to_string()).unwrap_or_default();
            let ttl = lease(tenure.claim.ttl, MIN_TTL).as_millis();
            self.call(&tenure.claim).arg(ttl).arg(attempt(sent)).arg(token)
        };
        let calls: Vec<Call> = tenures.iter().map(call).collect();
        let renewal = |(tenure, answer): (&Tenure, Result<_>)| {
            let renewed = answer.and_then(|a| self.renewal(tenure, &record(&a)?, sent));
            renewed.unwrap_or_else(Renewal::Unknown)
        };
        tenures.iter().zip(RENEW.run_all(&self.connection, &calls).await).map(renewal).collect()
    }

    fn renewal(&self, tenure: &Tenure, answer: &str, sent: Moment) -> Result<Renewal> {
        let ttl = lease(tenure.claim.ttl, MIN_TTL);
        let mut fields = Fields::of(answer);
        match (fields.word(), tenure.token) {
            ("granted", None) if self.replicas.is_some() => {
                self.inbox.bells().claim_again(tenure.claim.id);
                Ok(Renewal::Renewed(Validity::since(sent, ttl)))
            }
            ("granted", None) => Ok(Renewal::Granted(self.grant(&tenure.claim, fields, sent, ttl)?)),
            ("granted" | "waiting", _) => Ok(Renewal::Renewed(Validity::since(sent, ttl))),
            ("gone", _) => Ok(Renewal::Lost(Loss::Gone)),
            _ => Err(junk("the answer to a renewal")),
        }
    }

    pub(crate) async fn withdraw(&self, claim: &Claim) -> Result<()> {
        RELEASE.run(&self.connection, &self.call(claim)).await.map(drop)
    }

    /// The start of every call for a claim.
    fn call(&self, claim: &Claim) -> Call {
        Call::on(self.names.keys(&claim.name)).arg(claim.id)
    }

    fn place(&self, claim: &Claim) -> Place {
        Place::new(self.names.lock(&claim.name))
    }

    /// `token turns`. The script extended the lease, so it counts from this very request.
    fn grant(&self, claim: &Claim, mut fields: Fields<'_>, sent: Moment, ttl: Duration) -> Result<Grant> {
        let (token, turns) = (fields.token()?, fields.value()?);
        Ok(Grant::new(self.place(claim), token, Validity::since(sent, ttl)).turns(turns))
    }
}

/// When claiming again may help without a bell: just after the holder's lease ends, one after another. Another tool's
/// release tells nobody, so the first in line looks often. Only a hint: renewals notice a dead holder too.
fn nap(ahead: &Ahead, ttl: Duration) -> Duration {
    let end = ahead.left.map(|left| left + Duration::from_millis(1));
    let nap = match (end, ahead.who.foreign && ahead.rank == 0) {
        (end, true) => end.map_or(FOREIGN, |end| end.min(FOREIGN)),
        (end, false) => end.unwrap_or(ttl / 3),
    };
    nap + (SPREAD * ahead.rank).min(ttl / 3)
}

/// A mode as permits of a kind: claims of one kind share what there is, and kinds exclude each other.
fn permits(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("exclusive", 1, 1),
        Mode::Shared => ("shared", 1, u32::MAX),
        Mode::Permits { n, of } => ("permits", n, of),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::Contention;

    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn naps_end_with_the_holder_and_never_all_at_once() {
        let foreign = Contention::foreign();
        let ours = Contention::by("x");
        let at = |who: &Contention, left, rank| nap(&Ahead { who: who.clone(), left, rank }, TTL);
        assert_eq!(at(&foreign, Some(ms(40)), 0), ms(41));
        assert_eq!(at(&foreign, Some(ms(9_999_999)), 0), FOREIGN);
        assert_eq!(at(&foreign, None, 1), ms(3002));
        assert_eq!(at(&ours, Some(ms(500)), 0), ms(501));
        assert_eq!(at(&ours, Some(ms(500)), u32::MAX), ms(501) + TTL / 3);
    }
}
