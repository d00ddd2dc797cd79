//! Claiming: a majority or nothing, and a token that a majority knows.

use std::sync::Arc;
use std::time::Duration;

use crate::link::{Ahead, Fields, GivenUp};
use leasehold_core::backend::{
    Claim, Claimed, Grant, Mode, Moment, Place, Validity, WaitPolicy, Waiting,
};
use leasehold_core::support::fault;
use leasehold_core::{Contention, Error, ErrorKind, FencingToken, Result};
use redis::Value;

use crate::redlock::Shared;
use crate::redlock::client::nodes::{InFlight, await_later, each_answer};
use crate::redlock::entry::{Held, ttl};
use crate::redlock::release::Leaves;

/// The shortest interval at which a waiter claims again without a notification, and the interval
/// for each waiter if all of them together need more.
const POLL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(20));
/// The longest pause after an attempt that collided with others.
const COLLIDED: Duration = Duration::from_millis(100);

/// The answers of the nodes to one attempt.
#[derive(Default)]
struct Tally {
    /// The nodes that granted, and the token of each.
    granted: Vec<(usize, u64)>,
    refused: Vec<Ahead>,
    failed: Vec<(usize, Error)>,
}

impl Shared {
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        if let Some(why) = unsupported(claim) {
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let number = self.nodes.list.number();
        let claimed = self.claim_once(claim).await;
        if claimed.is_err() && self.nodes.list.number() != number {
            // The same nodes have another number now.
            return self.claim_once(claim).await;
        }
        claimed
    }

    async fn claim_once(&self, claim: &Claim) -> Result<Claimed> {
        let sent = Moment::now();
        if let Some(Held {
            token,
            claim: held,
            released,
        }) = self.held(claim.id)
        {
            // The number of turns was decided when the hold was granted.
            let mut again = claim.clone();
            again.policy = held.policy;
            if self.again(&again, token, released).await? {
                return Ok(Claimed::Granted(self.grant(&again, token, sent)));
            }
            // The hold has gone: its remains on a minority are removed before a new one begins.
            self.forget(claim.id);
            self.give_back(claim, Leaves::NoAttempt, (0..self.nodes.len()).collect())
                .await;
        }
        let waits = claim.policy != WaitPolicy::Try;
        let sent = Moment::now();
        let released = GivenUp::default();
        let (tally, requests) = self.poll(claim, waits, &released).await;
        let agreed = self.agree(claim, &tally).await;
        if !matches!(agreed, Ok(Some(_))) {
            // Set before the withdrawal is sent: no node is sent the claim once more behind it.
            released.set();
        }
        await_later(requests);
        if let Ok(Some(token)) = agreed {
            self.remember(claim, token, released);
            return Ok(Claimed::Granted(self.grant(claim, token, sent)));
        }
        let took = Moment::now().since(sent);
        let leaves = if waits {
            Leaves::Waiter
        } else {
            Leaves::NoAttempt
        };
        self.give_back(
            claim,
            leaves,
            tally.granted.iter().map(|(nth, _)| *nth).collect(),
        )
        .await;
        agreed?;
        if tally.granted.len() + tally.refused.len() < self.nodes.majority() {
            let failure = self.nodes.failure(tally.failed);
            let keeps_waiter = waits && tally.granted.len() + tally.refused.len() > 0;
            // The nodes that answered keep the waiter until the claim is withdrawn.
            return Err(match failure.kind() {
                ErrorKind::Unavailable if keeps_waiter => failure.with_kind(ErrorKind::Ambiguous),
                _ => failure,
            });
        }
        let who = tally.who();
        if !waits {
            return Ok(Claimed::Busy(who));
        }
        let retry_after = tally.retry_after(self.nodes.len(), &who, ttl(claim), took);
        Ok(Claimed::Waiting(
            Waiting::new(self.place(claim), who).retry_after(retry_after),
        ))
    }

    /// Asks every node until a majority has granted, or until no majority can any more. Returns
    /// also the requests that are not answered yet.
    async fn poll(
        &self,
        claim: &Claim,
        waits: bool,
        released: &GivenUp,
    ) -> (Tally, InFlight<Result<Value>>) {
        let call = self
            .call("claim", claim)
            .arg(self.nodes.proposal())
            .arg(u8::from(waits));
        let sent = Moment::now();
        let mut requests = self.nodes.send(call.until(released.clone()));
        let mut tally = Tally::default();
        let needed = self.nodes.majority();
        each_answer(&mut requests, |nth, answer| {
            tally.enter(nth, answer.and_then(|answer| self.read(nth, &answer)));
            tally.granted.len() >= needed || self.nodes.len() - tally.refused.len() < needed
        })
        .await;
        // A node may not know the holder's token yet. For a majority that names one holder, the
        // attempt waits as long again.
        if tally.granted.len() < needed && tally.votes(&tally.who()) < needed {
            let certain = each_answer(&mut requests, |nth, answer| {
                tally.enter(nth, answer.and_then(|answer| self.read(nth, &answer)));
                tally.votes(&tally.who()) >= needed
            });
            let _ = tokio::time::timeout(Moment::now().since(sent), certain).await;
        }
        (tally, requests)
    }

    /// Reads `granted micros token`, or `refused micros` and the claims ahead.
    fn read(&self, nth: usize, answer: &Value) -> Result<Result<u64, Ahead>> {
        let answer = self.nodes.record(nth, answer)?;
        let mut fields = Fields::of(&answer);
        let granted = fields.word() == "granted";
        self.nodes.learn(nth, fields.value()?);
        if granted {
            fields.value().map(Ok)
        } else {
            Ahead::of(fields).map(Err)
        }
    }

    /// Returns the token once a majority that holds this claim knows one as great. `None`: there is
    /// no such majority.
    async fn agree(&self, claim: &Claim, tally: &Tally) -> Result<Option<FencingToken>> {
        let needed = self.nodes.majority();
        let greatest = tally
            .granted
            .iter()
            .map(|(_, token)| *token)
            .max()
            .unwrap_or_default();
        if tally.granted.len() < needed {
            return Ok(None);
        }
        let token = FencingToken::new(greatest);
        let agree = tally
            .granted
            .iter()
            .filter(|(_, token)| *token == greatest)
            .count();
        let known = agree >= needed || fault("own-token") || self.extend(claim, token).await?;
        Ok(known.then_some(token))
    }

    /// Releases the claim on every node, whatever it answered. Returns once the nodes in `open`
    /// have answered.
    async fn give_back(&self, claim: &Claim, leaves: Leaves, mut open: Vec<usize>) {
        let mut requests = self
            .nodes
            .send(self.call("release", claim).arg(leaves as u8));
        each_answer(&mut requests, |nth, _| {
            open.retain(|waited| *waited != nth);
            open.is_empty()
        })
        .await;
        await_later(requests);
    }

    /// Claims a hold of this client again, with the options of this claim. Returns whether a
    /// majority has it.
    async fn again(&self, claim: &Claim, token: FencingToken, released: GivenUp) -> Result<bool> {
        let extended = self.extend(claim, token).await;
        if matches!(&extended, Ok(true))
            || extended
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::Ambiguous)
        {
            self.remember(claim, token, released);
        }
        extended
    }

    /// Remembers the hold as this claim describes it. A shared hold stays shared.
    fn remember(&self, claim: &Claim, token: FencingToken, released: GivenUp) {
        let mut holds = self.holds();
        let was_shared = holds
            .get(&claim.id)
            .is_some_and(|held| held.claim.mode == Mode::Shared);
        let mut claim = claim.clone();
        if was_shared {
            claim.mode = Mode::Shared;
        }
        holds.insert(
            claim.id,
            Held {
                token,
                claim: Arc::new(claim),
                released,
            },
        );
    }

    fn place(&self, claim: &Claim) -> Place {
        Place::new(self.names.lock(&claim.name))
    }

    fn grant(&self, claim: &Claim, token: FencingToken, sent: Moment) -> Grant {
        let validity = Validity::since(sent, ttl(claim));
        Grant::new(self.place(claim), token, validity).turns(claim.turns())
    }
}

impl Tally {
    fn enter(&mut self, nth: usize, answer: Result<Result<u64, Ahead>>) {
        match answer {
            Ok(Ok(token)) => self.granted.push((nth, token)),
            Ok(Err(refusal)) => self.refused.push(refusal),
            Err(e) => self.failed.push((nth, e)),
        }
    }

    /// The number of nodes that name this holder.
    fn votes(&self, who: &Contention) -> usize {
        self.refused
            .iter()
            .filter(|refusal| refusal.who.token == who.token)
            .count()
    }

    /// The holder that most nodes name.
    fn who(&self) -> Contention {
        let named = self
            .refused
            .iter()
            .map(|refusal| &refusal.who)
            .max_by_key(|who| self.votes(who));
        named.cloned().unwrap_or_else(Contention::unknown)
    }

    /// The time after which a waiter claims again without a notification. `nodes` is the number of
    /// nodes.
    fn retry_after(
        &self,
        nodes: usize,
        who: &Contention,
        ttl: Duration,
        took: Duration,
    ) -> Duration {
        let needed = nodes / 2 + 1;
        let jitter = |d: Duration| d.mul_f64(0.5 + fastrand::f64() / 2.0);
        if self.refused.len() < needed {
            // Others claimed at this time, and perhaps none of them was granted the lock: they
            // claim again soon, but not all at once.
            return jitter((took * 4).clamp(Duration::from_millis(4), COLLIDED));
        }
        let waiters = who.waiters.unwrap_or_default().min(10_000) as u32;
        let poll = jitter((POLL.1 * waiters).max(POLL.0)).min(ttl / 3);
        // The time until enough leases have run out. Waiters then claim one after another.
        let mut left: Vec<Duration> = self
            .refused
            .iter()
            .map(|refusal| refusal.left.unwrap_or(Duration::MAX))
            .collect();
        left.sort();
        let not_refusing = nodes - left.len();
        let end = left
            .get((needed - 1).saturating_sub(not_refusing))
            .copied()
            .unwrap_or_default();
        let spread = Duration::from_millis(2).mul_f64(fastrand::f64() * f64::from(waiters + 1));
        poll.min(end.saturating_add(Duration::from_millis(1) + spread))
    }
}

/// The reason why no majority can grant such a claim, if there is one.
fn unsupported(claim: &Claim) -> Option<&'static str> {
    match (claim.policy, claim.mode) {
        (WaitPolicy::Fair, _) => Some(
            "Redlock keeps no order: its nodes would hand a lock to different waiters, and none would get it",
        ),
        (_, Mode::Permits { .. }) => Some(
            "Redlock has no semaphores: of three holders each may have two of three nodes while no node has \
                  more than two of them, so a majority does not count permits",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_nodes_say_a_waiter_asks_again_within_its_lease() {
        let ttl = Duration::from_secs(9);
        fuzz_text(include_str!("../../corpus/records"), |text| {
            let said = |_| {
                let mut fields = Fields::of(text);
                fields.word();
                Ahead::of(fields)
            };
            for nodes in [3, 5] {
                for refusing in 0..=nodes {
                    let mut tally = Tally::default();
                    (0..refusing).for_each(|nth| tally.enter(nth, said(nth).map(Err)));
                    let again =
                        tally.retry_after(nodes, &tally.who(), ttl, Duration::from_millis(3));
                    assert!(again > Duration::ZERO && again <= ttl / 3, "{again:?}");
                }
            }
        });
    }

    fn refusal(token: u64, left: i64) -> Result<Result<u64, Ahead>> {
        Ahead::of(Fields::of(&format!(
            "ours {token} 0 0 {left} 0 web {token}"
        )))
        .map(Err)
    }

    #[test]
    fn the_holder_is_whom_most_nodes_name() {
        let mut tally = Tally::default();
        assert_eq!(tally.who(), Contention::unknown());
        for (nth, token) in [7, 8, 8].into_iter().enumerate() {
            tally.enter(nth, refusal(token, 1000));
        }
        tally.enter(3, Ok(Ok(9)));
        tally.enter(4, Err(Error::new(ErrorKind::Unavailable, "x")));
        let who = tally.who();
        assert_eq!(
            (who.token, tally.votes(&who)),
            (Some(FencingToken::new(8)), 2)
        );
        assert_eq!(
            (&*tally.granted, tally.refused.len(), tally.failed.len()),
            (&[(3, 9)][..], 3, 1)
        );
    }

    /// A waiter claims again when enough of the leases before it have run out, and otherwise from
    /// time to time, the more rarely the more waiters there are. After a collision it claims again
    /// soon.
    #[test]
    fn a_waiter_asks_again_when_a_majority_can_be_free() {
        let ttl = Duration::from_secs(60);
        let millis = |ms| Duration::from_millis(ms);
        let again = |left: &[i64], nodes, took, waiters| {
            let mut tally = Tally::default();
            left.iter()
                .enumerate()
                .for_each(|(nth, left)| tally.enter(nth, refusal(7, *left)));
            let who = tally.who().waiters(waiters);
            tally.retry_after(nodes, &who, ttl, millis(took))
        };
        for _ in 0..100 {
            // Two of three nodes must be free: the second lease to run out decides.
            let soon = again(&[10, 20, 5000], 3, 3, 0);
            assert!(soon >= millis(20) && soon <= millis(24), "{soon:?}");
            // One of the three has not refused: the first lease to run out is enough.
            let soon = again(&[10, 5000], 3, 3, 0);
            assert!(soon >= millis(10) && soon <= millis(14), "{soon:?}");
            let poll = again(&[5000, 5000, 5000], 3, 3, 0);
            assert!(poll >= POLL.0 / 2 && poll <= POLL.0, "{poll:?}");
            let crowd = again(&[60_000, 60_000, 60_000], 3, 3, 100);
            assert!(crowd >= POLL.1 * 50 && crowd <= POLL.1 * 100, "{crowd:?}");
            assert!(again(&[60_000; 3], 3, 3, 10_000) <= ttl / 3);
            let collided = again(&[5000], 3, 10, 0);
            assert!(
                collided >= millis(20) && collided <= millis(40),
                "{collided:?}"
            );
            assert!(again(&[5000], 3, 0, 0) >= millis(2) && again(&[5000], 3, 1000, 0) <= COLLIDED);
        }
    }

    #[test]
    fn what_no_majority_can_do_is_refused() {
        let claim = |policy, mode| Claim::new("a", mode, policy, Duration::from_secs(1), "me");
        for mode in [Mode::Exclusive, Mode::Shared] {
            assert_eq!(unsupported(&claim(WaitPolicy::Fast, mode)), None);
            assert_eq!(unsupported(&claim(WaitPolicy::Try, mode)), None);
            assert!(
                unsupported(&claim(WaitPolicy::Fair, mode))
                    .is_some_and(|why| why.contains("no order"))
            );
        }
        let permits = claim(WaitPolicy::Fast, Mode::Permits { n: 1, of: 2 });
        assert!(unsupported(&permits).is_some_and(|why| why.contains("no semaphores")));
    }
}
