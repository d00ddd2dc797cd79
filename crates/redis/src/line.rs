//! The verbs of a claim: claim, renew, release, release later.

mod several;

use std::time::Duration;

use leasehold_core::seam::{Claim, Claimed, Grant, Mode, Moment, Place, Queue, Renewal, Tenure, Validity, Waiting};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Result};
use leasehold_redis_client::{Ahead, Call, Fields, Script, again, attempt, junk, lease, record};
use redis::Value;

use crate::scripts::{CLAIM, LAPSE, RELEASE, RENEW, RENEW_HELD};
use crate::{MIN_TTL, Redis};

/// How long one verb goes on where more is to be done than one script may.
const LONGEST: Duration = Duration::from_secs(2);
/// Tokens that a fast claim reserves for turns.
const TURNS: u32 = 64;
/// How often the first in line looks at another tool's lock, whose release tells nobody.
const FOREIGN: Duration = Duration::from_millis(250);
/// How many holds one script renews: it keeps everybody else waiting.
const RENEWED: usize = 100;
/// How far apart those in line look when a holder died, by their place.
const SPREAD: Duration = Duration::from_millis(2);

impl Redis {
    pub(crate) async fn take(&self, claim: &Claim) -> Result<Claimed> {
        let ((kind, n, of), ttl) = (permits(claim.mode), lease(claim.ttl, MIN_TTL));
        let turns = if claim.queue == Queue::Fast { TURNS } else { 1 };
        let sent = Moment::now();
        let call = self.call(claim).arg(u8::from(claim.queue != Queue::Try)).arg(ttl.as_millis()).arg(turns);
        let call = call.arg(attempt(sent)).arg(format!("{kind} {n} {of}")).arg(self.inbox.channel()).arg(&claim.label);
        let answer = self.run(&CLAIM, &call).await?;
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
        let mut renewals: Vec<Option<Renewal>> = tenures.iter().map(|_| None).collect();
        self.keep_held(tenures, &mut renewals).await;
        let sent = Moment::now();
        let call = |tenure: &Tenure| {
            let token = tenure.token.map(|t| t.to_string()).unwrap_or_default();
            let ttl = lease(tenure.claim.ttl, MIN_TTL).as_millis();
            self.call(&tenure.claim).arg(ttl).arg(attempt(sent)).arg(token)
        };
        let others = tenures.iter().zip(&renewals).filter(|(_, known)| known.is_none());
        let calls: Vec<Call> = others.map(|(tenure, _)| call(tenure)).collect();
        let mut answers = RENEW.run_all(&self.connection, &calls).await.into_iter();
        let renewal = |(tenure, known): (&Tenure, Option<Renewal>)| match known {
            Some(known) => known,
            None => {
                let answer = answers.next().unwrap_or_else(|| Err(junk("the answer to a renewal")));
                let renewed = answer.and_then(|a| self.renewal(tenure, &record(&a)?, sent));
                renewed.unwrap_or_else(Renewal::Unknown)
            }
        };
        tenures.iter().zip(renewals).map(renewal).collect()
    }

    /// Renews the exclusive holds among these in the shortest way, and says so where that was enough.
    async fn keep_held(&self, tenures: &[Tenure], renewals: &mut [Option<Renewal>]) {
        let sent = Moment::now();
        let held = |(_, tenure): &(usize, &Tenure)| tenure.claim.mode == Mode::Exclusive && tenure.token.is_some();
        let held: Vec<(usize, &Tenure)> = tenures.iter().enumerate().filter(held).collect();
        let call = |some: &[(usize, &Tenure)]| {
            let locks: Vec<String> = some.iter().map(|(_, tenure)| self.names.lock(&tenure.claim.name)).collect();
            some.iter().fold(Call::on(locks), |call, (_, Tenure { claim, token, .. })| {
                let start = format!("{} {} ", claim.id, token.map_or(0, FencingToken::get));
                call.arg(start).arg(lease(claim.ttl, MIN_TTL).as_millis())
            })
        };
        let calls: Vec<Call> = held.chunks(RENEWED).map(call).collect();
        for (some, answer) in held.chunks(RENEWED).zip(RENEW_HELD.run_all(&self.connection, &calls).await) {
            // Nobody answered, or not in time. What is refused for all, because of one key, may be done for each.
            if let Err(e) = &answer
                && matches!(e.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable | ErrorKind::Closed)
            {
                some.iter().for_each(|(at, _)| renewals[*at] = Some(Renewal::Unknown(again(e))));
            }
            let Ok(Value::Array(answers)) = answer else { continue };
            for ((at, tenure), answer) in some.iter().zip(answers) {
                let validity = Validity::since(sent, lease(tenure.claim.ttl, MIN_TTL));
                renewals[*at] = (answer == Value::Int(1)).then_some(Renewal::Renewed(validity));
            }
        }
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
        self.run(&RELEASE, &self.call(claim)).await.map(drop)
    }

    pub(crate) async fn let_lapse(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let rest = lease(rest, Duration::from_millis(1));
        self.run(&LAPSE, &self.call(claim).arg(rest.as_millis())).await.map(drop)
    }

    /// Runs a script until it no longer says that there is more to do than one may: for others first, then what it is for.
    pub(crate) async fn run(&self, script: &Script, call: &Call) -> Result<Value> {
        let begun = Moment::now();
        loop {
            let answer = script.run(&self.connection, call).await?;
            if answer != Value::BulkString(b"more".to_vec()) {
                return Ok(answer);
            }
            if Moment::now().since(begun) > LONGEST {
                let what = "so many waited here that they are still being served: ask again";
                return Err(Error::new(ErrorKind::Ambiguous, what));
            }
        }
    }

    /// The start of every call for a claim.
    fn call(&self, claim: &Claim) -> Call {
        Call::on(self.names.keys(&claim.name)).arg(claim.id)
    }

    fn place(&self, claim: &Claim) -> Place {
        self.inbox.place(claim.id, &self.names.lock(&claim.name))
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
