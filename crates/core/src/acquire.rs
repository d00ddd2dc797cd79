//! The acquire loop: claim, wait for a notification, a nap or the deadline, claim again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::acquisition::{Acquisition, Attempt, Woken};
use crate::backoff::{Backoff, jittered};
use crate::claim::{Claim, WaitPolicy};
use crate::claim_state::{ClaimState, Granted};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::grant::Claimed;
use crate::guard::Guard;
use crate::queue::Contention;

/// How much longer than its deadline a bounded acquire may take: one last look at the store.
const LAST_ATTEMPT: Duration = Duration::from_millis(40);

/// An acquisition: resolves with the guard. It does nothing before it is first polled, owns all that it needs, and may be
/// spawned, selected and dropped anywhere.
///
/// Poll it or drop it: one that is kept and not polled, beside a `select!` that went another way, keeps its place in line,
/// and when its turn comes it keeps the lock from everybody else.
///
/// # Cancel safety
///
/// Drop it at any time. A request that is in flight then is let land, and whatever it took is given back in the
/// background; other waiters proceed, and nothing stays in the store longer than one lease.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire<G = Guard>(Pin<Box<dyn Future<Output = Result<G>> + Send>>);

impl<G> Acquire<G> {
    pub(crate) fn new(acquisition: impl Future<Output = Result<G>> + Send + 'static) -> Acquire<G> {
        Acquire(Box::pin(async move {
            // Whoever asks in a loop, and is refused each time without any request, lets others run.
            tokio::task::coop::consume_budget().await;
            acquisition.await
        }))
    }
}

impl<G> Future for Acquire<G> {
    type Output = Result<G>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<G>> {
        self.0.as_mut().poll(cx)
    }
}

impl<G> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquire")
    }
}

/// How long an acquisition may wait for others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Try,
    For(Duration),
    Forever,
}

impl Wait {
    /// What is left of it since `started`.
    pub(crate) fn left(self, started: Moment, client: &Client) -> Wait {
        match self {
            Wait::For(d) => Wait::For(d.saturating_sub(client.clock.now().since(started))),
            other => other,
        }
    }
}

/// A hold that no guard has yet, and what is known of its grant.
pub(crate) type Taken = (Arc<ClaimState>, Granted);

/// Takes the lock. The caller holds what comes back: renewed, listened for, and not yet given to a guard. `outage_since`:
/// from when on the store is known to have answered nobody.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    mut claim: Claim,
    wait: Wait,
    max_hold: Option<Duration>,
    outage_since: Option<Moment>,
) -> Result<Taken> {
    client.ready()?;
    if let Wait::Try = wait {
        claim.policy = WaitPolicy::Try;
    }
    let mut acquisition = Acquisition::new(client, claim, Vec::new());
    let granted = pursue(&mut acquisition, wait, max_hold, outage_since).await?;
    let state = acquisition.state.clone();
    acquisition.succeed();
    Ok((state, granted))
}

/// Takes all of these in one step, or none. They are tries: `wait` is for a store that does not answer. An error comes with
/// the number of the claim that it is about.
pub(crate) async fn acquire_all(
    client: &Arc<Client>,
    first: Claim,
    others: Vec<Claim>,
    wait: Wait,
    max_hold: Option<Duration>,
) -> Result<Vec<Taken>, (usize, Error)> {
    client.ready().map_err(|e| (0, e))?;
    let mut acquisition = Acquisition::new(client, first, others);
    let granted = pursue(&mut acquisition, wait, max_hold, None).await.map_err(|e| (acquisition.refused, e))?;
    let mut taken = vec![(acquisition.state.clone(), granted)];
    for (i, state) in acquisition.others.iter().enumerate() {
        let granted = state.take(max_hold).ok_or_else(|| (i + 1, too_slow()))?;
        taken.push((state.clone(), granted));
    }
    acquisition.succeed();
    Ok(taken)
}

fn too_slow() -> Error {
    Error::new(ErrorKind::Unavailable, "the store answers more slowly than the lease lasts")
}

/// Asks, waits and asks again, until the claim is granted and is a hold.
async fn pursue(
    acquisition: &mut Acquisition<'_>,
    wait: Wait,
    max_hold: Option<Duration>,
    outage_since: Option<Moment>,
) -> Result<Granted> {
    let client = acquisition.client;
    let (started, ttl) = (client.clock.now(), acquisition.state.claim.ttl);
    let (deadline, retry_budget) = match wait {
        Wait::Try => (None, ttl / 3),
        Wait::For(d) => (Some(started + d), Duration::MAX),
        Wait::Forever => (None, ttl),
    };
    let (last_attempt, in_line) = (deadline.map(|at| at + LAST_ATTEMPT), retry_budget.min(ttl));
    let mut random = client.random();
    let mut backoff = Backoff::for_retries(random.fork());
    let mut outage = Outage { since: outage_since, last: None };
    let mut who = None;
    loop {
        let mut poll_in = None;
        match acquisition.claim(last_attempt, in_line).await {
            Attempt::Answered(Ok(Claimed::Granted(grant)))
                if grant.validity.until(acquisition.stamp) <= client.clock.now() =>
            {
                // It took longer to hear of the grant than it lasts.
                acquisition.state.wait_at(grant.place);
                poll_in = Some(outage.met(too_slow(), client.clock.now(), retry_budget, &mut backoff)?);
            }
            Attempt::Answered(Ok(Claimed::Granted(grant))) => acquisition.state.grant(grant, acquisition.stamp),
            Attempt::Answered(Ok(Claimed::Busy(by))) => {
                acquisition.left_nothing();
                return Err(Error::contended(by));
            }
            Attempt::Answered(Ok(Claimed::Waiting(waiting))) if matches!(wait, Wait::Try) => {
                acquisition.state.wait_at(waiting.place);
                return Err(Error::contended(waiting.who));
            }
            Attempt::Answered(Ok(Claimed::Waiting(waiting))) => {
                if who.is_none() {
                    events::waiting(&acquisition.state.claim, &waiting);
                }
                outage = Outage::default();
                backoff = Backoff::for_retries(random.fork());
                acquisition.state.wait_at(waiting.place);
                client.keep(&acquisition.state);
                // A store that says nothing is asked again once per lease: no wait rests on its notifications alone.
                poll_in = Some(waiting.retry_after.unwrap_or_else(|| jittered(ttl, &mut random)));
                who = Some(waiting.who);
            }
            Attempt::Answered(Err(e)) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) => {
                events::claim_failed(&acquisition.state.claim, &e);
                poll_in = Some(outage.met(e, client.clock.now(), retry_budget, &mut backoff)?);
            }
            // It was not sent in time.
            Attempt::Answered(Err(e)) if e.kind() == ErrorKind::TimedOut => return Err(who.map_or(e, Error::timed_out)),
            Attempt::Answered(Err(e)) => return Err(e),
            Attempt::Late => return Err(outage.or_timed_out(who)),
        }
        let next = poll_in.map(|poll_in| client.clock.now() + poll_in);
        match acquisition.wait(next, deadline).await {
            Woken::Again => {}
            Woken::Granted => {
                if let Some(granted) = acquisition.state.take(max_hold) {
                    events::acquired(&acquisition.state.claim, granted.token, client.clock.now().since(started));
                    return Ok(granted);
                }
            }
            Woken::Late => {
                // One last look, so that a lock freed just now is not missed by a hair.
                if let Attempt::Answered(Ok(Claimed::Granted(grant))) = acquisition.claim(last_attempt, in_line).await {
                    acquisition.state.grant(grant, acquisition.stamp);
                }
                let Some(granted) = acquisition.state.take(max_hold) else { return Err(outage.or_timed_out(who)) };
                events::acquired(&acquisition.state.claim, granted.token, client.clock.now().since(started));
                return Ok(granted);
            }
        }
    }
}

/// A row of failures of the store.
#[derive(Default)]
struct Outage {
    since: Option<Moment>,
    last: Option<Error>,
}

impl Outage {
    /// One more: how long to wait before asking again, or the error itself once patience is at its end.
    fn met(&mut self, e: Error, now: Moment, retry_budget: Duration, backoff: &mut Backoff) -> Result<Duration> {
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= retry_budget {
            return Err(e);
        }
        self.last = Some(e);
        Ok(backoff.next())
    }

    /// The error at the deadline: the store's trouble, if that is why.
    fn or_timed_out(self, who: Option<Contention>) -> Error {
        match (self.last, who) {
            (Some(e), _) => e,
            (None, Some(who)) => Error::timed_out(who),
            (None, None) => Error::new(ErrorKind::Ambiguous, "the store did not answer in time"),
        }
    }
}
