//! `claim`, and `claim_all` for several names in one script.

use std::time::Duration;

use crate::link::{Ahead, Call, Connection, Fields, attempt, junk, record};
use leasehold_core::backend::{
    Claim, Claimed, ClaimedAll, Grant, Mode, Moment, Place, Validity, WaitPolicy, Waiting,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use redis::Value;

use crate::Redis;
use crate::client::nodes::Nodes;
use crate::client::replicas::{Baseline, Replicas};
use crate::completion;
use crate::entry::{self, RAISES};
use crate::plain::Plain;
use crate::scripts::{CLAIM, CLAIM_ALL, CLAIM_ONCE, FENCE, RAISE};

/// The interval at which the first waiter polls a lock of another tool, whose release notifies no
/// waiter.
const FOREIGN_POLL: Duration = Duration::from_millis(250);
/// The interval between the polls of the first waiter, where nothing is pushed.
const POLL: Duration = Duration::from_millis(50);
/// The distance between the polls of two waiters after a holder died, by their rank.
const SPREAD: Duration = Duration::from_millis(2);

impl Redis {
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let sent = Moment::now();
        let mut nth = 0;
        let replicas = self.replicas_now()?;
        let floor = self.floor(claim)?;
        let call = |to: &Connection| {
            nth = to.nth()?;
            let call = match claim.once {
                None => self.call(&CLAIM, claim),
                Some(_) => self.on_once(&CLAIM_ONCE, &claim.name).arg(claim.id),
            };
            let call = self.with_options(call, claim, sent, nth);
            let call = match (claim.policy == WaitPolicy::Try, floor) {
                (true, None) => call.arg("tries"),
                (false, None) => call,
                (tries, Some(floor)) => call.arg(if tries { "tries" } else { "waits" }).arg(floor),
            };
            Ok(claim.once.into_iter().fold(call, Call::arg))
        };
        let answer = said(claim, &self.run(&claim.name, call).await?)?;
        let mut fields = Fields::of(&answer);
        match (fields.word(), claim.mode) {
            ("granted", _) => {
                let grant = self.grant(claim, &mut fields, sent)?;
                self.acknowledged(nth, replicas).await?;
                Ok(Claimed::Granted(grant))
            }
            ("busy", _) => Ok(Claimed::Busy(Ahead::of(fields)?.who)),
            ("done", _) => {
                let done = completion::read(fields)?;
                // Others believe it as they believe a grant.
                self.acknowledged(nth, replicas).await?;
                Ok(Claimed::Done(done))
            }
            ("unreadable", _) => Err(self.unreadable(&claim.name)),
            ("differ", Mode::Permits { of, .. }) => Err(Error::permits_differ(fields.value()?, of)),
            ("waiting", _) => {
                let ahead = Ahead::of(fields)?;
                let ttl = entry::ttl(claim);
                let after = retry_after(&ahead, ttl);
                let retry_after = match self.nodes.has_pushes() {
                    true => after,
                    false => after.min(poll(ahead.rank, ttl)),
                };
                Ok(Claimed::Waiting(
                    Waiting::new(self.place(claim), ahead.who).retry_after(retry_after),
                ))
            }
            _ => Err(junk("the answer to a claim")),
        }
    }

    /// Claims without a script.
    pub(crate) async fn claim_plain(&self, plain: &Plain, claim: &Claim) -> Result<Claimed> {
        let replicas = self.replicas_now()?;
        let (nth, claimed) = plain.claim(claim).await?;
        if matches!(claimed, Claimed::Granted(_)) {
            self.acknowledged(nth, replicas).await?;
        }
        Ok(claimed)
    }

    /// Claims all of these or none. They differ only in their names and ids.
    pub(crate) async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let Some(first) = claims.first() else {
            return Ok(ClaimedAll::Granted(Vec::new()));
        };
        let sent = Moment::now();
        let mut nth = 0;
        let replicas = self.replicas_now()?;
        let mut floored = false;
        for claim in claims {
            floored |= self.floor(claim)?.is_some();
        }
        let call = |to: &Connection| {
            nth = to.nth()?;
            let call = self.on_all(&CLAIM_ALL, claims.iter().map(|claim| &claim.name));
            let call = self.with_options(call, first, sent, nth);
            let call = claims.iter().fold(call, |call, claim| call.arg(claim.id));
            let floors = claims
                .iter()
                .filter(|_| floored)
                .map(|claim| claim.floor.map_or(0, FencingToken::get));
            Ok(floors.fold(call, |call, floor| call.arg(floor)))
        };
        let unknown = || junk("the answer to several claims");
        let Value::Array(answers) = self.run(&first.name, call).await? else {
            return Err(unknown());
        };
        if let [refusal @ Value::BulkString(said), Value::Int(at)] = &answers[..]
            && said.starts_with(b"busy ")
        {
            let refusal = record(refusal)?;
            let mut fields = Fields::of(&refusal);
            fields.word();
            return Ok(ClaimedAll::Busy(
                usize::try_from(*at).map_err(|_| unknown())?,
                Ahead::of(fields)?.who,
            ));
        }
        let grant = |(claim, answer)| {
            let answer = said(claim, answer)?;
            let mut fields = Fields::of(&answer);
            if fields.word() == "granted" {
                self.grant(claim, &mut fields, sent)
            } else {
                Err(unknown())
            }
        };
        let grants = claims
            .iter()
            .zip(&answers)
            .map(grant)
            .collect::<Result<Vec<_>>>()?;
        self.acknowledged(nth, replicas).await?;
        Ok(ClaimedAll::Granted(grants))
    }

    /// Adds the options of a claim, apart from its id. The server adds the clock to the record.
    fn with_options(&self, call: Call, claim: &Claim, sent: Moment, nth: u64) -> Call {
        let turns = claim.turns();
        let ttl = entry::ttl(claim).as_millis();
        let (kind, n, of) = claim.mode.parts();
        let attempt = attempt(sent);
        let channel = &self.inbox.channel;
        call.over(nth)
            .arg(ttl)
            .arg(turns)
            .arg(format_args!("{kind} {n} {of} {ttl} {turns} {attempt}"))
            .arg(format_args!("{channel} {}", claim.label))
    }

    /// The floor of this claim, where tokens can be raised.
    fn floor(&self, claim: &Claim) -> Result<Option<FencingToken>> {
        let floor = claim.floor.filter(|_| matches!(*self.nodes, Nodes::One(_)));
        RAISES
            .check(floor)
            .map(|()| floor.filter(|floor| floor.get() > 0))
    }

    /// Raises the fence to this number, above which tokens go on; 0 leaves it as it is. Returns a
    /// number that no token exceeds.
    pub(crate) async fn raise(&self, number: FencingToken) -> Result<FencingToken> {
        let Nodes::One(connection) = &*self.nodes else {
            let what = "each slot of a Redis Cluster numbers its holds by itself";
            return Err(Error::new(ErrorKind::Unsupported, what));
        };
        RAISES.check(Some(number))?;
        let replicas = self.replicas_now()?;
        let nth = connection.nth()?;
        let answer = Call::of(&RAISE, 1)
            .arg(FENCE)
            .arg(number)
            .over(nth)
            .run(connection)
            .await?;
        self.acknowledged(nth, replicas).await?;
        Fields::of(&record(&answer)?).token()
    }

    /// With the option `min_replicas`: the state to compare when a grant is acknowledged. It is
    /// taken before anything is sent.
    pub(crate) fn replicas_now(&self) -> Result<Option<Baseline>> {
        self.replicas.as_ref().map(Replicas::before).transpose()
    }

    /// With the option `min_replicas`, waits until the replicas have a grant over this connection:
    /// only then it counts.
    pub(crate) async fn acknowledged(&self, over: u64, replicas: Option<Baseline>) -> Result<()> {
        let (Some(asked), Some(before)) = (&self.replicas, replicas) else {
            return Ok(());
        };
        let Nodes::One(connection) = &*self.nodes else {
            return Ok(());
        };
        let in_doubt = |e: Error| Error::new(ErrorKind::Ambiguous, e.to_string());
        let written_by = connection.server_of(over).map_err(in_doubt)?;
        let asked_of = asked.server(&before).map_err(in_doubt)?;
        if asked_of != written_by {
            // The address leads elsewhere by now. New connections lead to one server again.
            let what = "the replicas of another server would be asked: a failover is under way";
            let e = Error::new(ErrorKind::Unavailable, what);
            asked.leave(&before, &e);
            connection.refuse(over, &e);
            return Err(in_doubt(e));
        }
        asked.acknowledge(before).await
    }

    fn place(&self, claim: &Claim) -> Place {
        self.inbox.place(claim.id, &self.names.lock(&claim.name))
    }

    /// Reads `token turns`. The script extended the lease, so the grant counts from this request.
    pub(crate) fn grant(
        &self,
        claim: &Claim,
        fields: &mut Fields<'_>,
        sent: Moment,
    ) -> Result<Grant> {
        let token = fields.token()?;
        let turns = fields.value()?;
        Ok(Grant::new(
            self.place(claim),
            token,
            Validity::since(sent, entry::ttl(claim)),
        )
        .turns(turns))
    }
}

/// The interval at which a waiter of this rank polls a server that pushes nothing. Those before it
/// need as long to notice that they hold. Ten thousand waiters for one name send less than 200
/// requests a second.
fn poll(rank: u32, ttl: Duration) -> Duration {
    POLL.saturating_mul(rank.saturating_add(1)).min(ttl / 3)
}

/// The script's answer to a claim, as a record. On the fast path the answer is the token alone.
fn said(claim: &Claim, answer: &Value) -> Result<String> {
    match answer {
        Value::Int(token) => Ok(format!("granted {token} {}", claim.turns())),
        answer => record(answer),
    }
}

/// The time after which claiming again may help without a notification: just after the holder's
/// lease ends, one waiter after another. The release of another tool notifies no waiter, so the
/// first waiter polls. This is only a hint: renewals notice a dead holder, too.
fn retry_after(ahead: &Ahead, ttl: Duration) -> Duration {
    let end = ahead.left.map(|left| left + Duration::from_millis(1));
    let after = match (end, ahead.who.foreign && ahead.rank == 0) {
        (end, true) => end.map_or(FOREIGN_POLL, |end| end.min(FOREIGN_POLL)),
        (end, false) => end.unwrap_or(ttl / 3),
    };
    after + (SPREAD * ahead.rank).min(ttl / 3)
}

#[cfg(test)]
mod tests {
    use leasehold_core::Contention;
    use leasehold_fuzz::{fuzz, fuzz_text};

    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waiters_retry_after_the_holder_and_never_all_at_once() {
        let foreign = Contention::foreign();
        let ours = Contention::by("x");
        let at = |who: &Contention, left, rank| {
            retry_after(
                &Ahead {
                    who: who.clone(),
                    left,
                    rank,
                },
                TTL,
            )
        };
        assert_eq!(at(&foreign, Some(ms(40)), 0), ms(41));
        assert_eq!(at(&foreign, Some(ms(9_999_999)), 0), FOREIGN_POLL);
        assert_eq!(at(&foreign, None, 1), ms(3002));
        assert_eq!(at(&ours, Some(ms(500)), 0), ms(501));
        assert_eq!(at(&ours, Some(ms(500)), u32::MAX), ms(501) + TTL / 3);
    }

    #[test]
    fn without_pushes_the_first_waiter_polls_most() {
        let intervals = [0, 1, 9, 59, 60, u32::MAX].map(|rank| poll(rank, TTL));
        assert_eq!(intervals, [50, 100, 500, 3000, 3000, 3000].map(ms));
    }

    #[test]
    fn whatever_a_script_says_a_waiter_asks_again() {
        fuzz(include_str!("../corpus/answers"), |bytes| {
            let Ok(answer) = redis::parse_redis_value(bytes) else {
                return;
            };
            let claim = Claim::new("x", Mode::Exclusive, WaitPolicy::Fair, TTL, "");
            let _ = said(&claim, &answer);
        });
        fuzz_text(include_str!("../corpus/records"), |text| {
            let mut fields = Fields::of(text);
            fields.word();
            let Ok(ahead) = Ahead::of(fields) else { return };
            assert!(retry_after(&ahead, TTL) >= Duration::from_millis(1).min(TTL));
        });
    }

    #[test]
    fn the_fast_path_says_the_token_alone() {
        for (policy, turns) in [(WaitPolicy::Fair, 1), (WaitPolicy::Fast, 64)] {
            let claim = Claim::new("x", Mode::Exclusive, policy, TTL, "");
            assert_eq!(
                said(&claim, &Value::Int(17)).unwrap(),
                format!("granted 17 {turns}")
            );
            assert_eq!(
                said(&claim, &Value::BulkString(b"busy x".to_vec())).unwrap(),
                "busy x"
            );
            assert!(said(&claim, &Value::Nil).is_err());
        }
    }
}
