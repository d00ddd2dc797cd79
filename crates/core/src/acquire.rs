//! The acquire loop: claim, wait for a bell, a nap or the deadline, claim again; and what happens when its caller leaves.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backoff::{Backoff, jittered};
use crate::claim::{Claim, Queue};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::grant::Claimed;
use crate::guard::Guard;
use crate::keeper::{Flight, Release};
use crate::line::Contention;
use crate::standing::{Granted, Look, Standing};

/// How much longer than its deadline a bounded acquire may take: one last look at the store.
const LAST_LOOK: Duration = Duration::from_millis(40);

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
        Acquire(Box::pin(acquisition))
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

/// Takes the lock. The caller holds what comes back: renewed, listened for, and not yet given to a guard.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    mut claim: Claim,
    wait: Wait,
    max_hold: Option<Duration>,
) -> Result<(Arc<Standing>, Granted)> {
    client.ready()?;
    let started = client.clock.now();
    let (deadline, patience) = match wait {
        Wait::Try => (None, claim.ttl / 3),
        Wait::For(d) => (Some(started + d), Duration::MAX),
        Wait::Forever => (None, claim.ttl),
    };
    let last_look = deadline.map(|at| at + LAST_LOOK);
    if let Wait::Try = wait {
        claim.queue = Queue::Try;
    }
    let mut random = client.random();
    let mut backoff = Backoff::for_retries(random.fork());
    let mut candidate = Candidate::new(client, claim);
    let mut trouble = Trouble::default();
    let mut who = None;
    loop {
        let mut nap = None;
        match candidate.claim(last_look).await {
            Answer::Landed(Ok(Claimed::Granted(grant)))
                if grant.validity.until(candidate.stamp) <= client.clock.now() =>
            {
                // It took longer to hear of the grant than it lasts.
                candidate.standing.wait_at(grant.place);
                let slow = Error::new(ErrorKind::Unavailable, "the store answers more slowly than the lease lasts");
                nap = Some(trouble.met(slow, client.clock.now(), patience, &mut backoff)?);
            }
            Answer::Landed(Ok(Claimed::Granted(grant))) => candidate.standing.grant(grant, candidate.stamp),
            Answer::Landed(Ok(Claimed::Busy(by))) => {
                candidate.left_nothing();
                return Err(Error::contended(ErrorKind::Contended, by));
            }
            Answer::Landed(Ok(Claimed::Waiting(waiting))) if matches!(wait, Wait::Try) => {
                candidate.standing.wait_at(waiting.place);
                return Err(Error::contended(ErrorKind::Contended, waiting.who));
            }
            Answer::Landed(Ok(Claimed::Waiting(waiting))) => {
                if who.is_none() {
                    events::waiting(&candidate.standing.claim, &waiting);
                }
                trouble = Trouble::default();
                backoff = Backoff::for_retries(random.fork());
                candidate.standing.wait_at(waiting.place);
                client.keep(&candidate.standing);
                // A store that says nothing is asked again once per lease: no wait rests on its bells alone.
                nap = Some(waiting.look_again.unwrap_or_else(|| jittered(candidate.standing.claim.ttl, &mut random)));
                who = Some(waiting.who);
            }
            Answer::Landed(Err(e)) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) => {
                events::claim_failed(&candidate.standing.claim, &e);
                nap = Some(trouble.met(e, client.clock.now(), patience, &mut backoff)?);
            }
            Answer::Landed(Err(e)) => return Err(e),
            Answer::Late => return Err(trouble.or_timed_out(who)),
        }
        let next = nap.map(|nap| client.clock.now() + nap);
        match candidate.wait(next, deadline).await {
            Woken::Again => {}
            Woken::Granted => {
                if let Some(granted) = candidate.standing.take(max_hold) {
                    events::acquired(&candidate.standing.claim, granted.token, client.clock.now().since(started));
                    return Ok((candidate.succeed(), granted));
                }
            }
            Woken::Late => {
                // One last look, so that a lock freed just now is not missed by a hair.
                if let Answer::Landed(Ok(Claimed::Granted(grant))) = candidate.claim(last_look).await {
                    candidate.standing.grant(grant, candidate.stamp);
                }
                let Some(granted) = candidate.standing.take(max_hold) else { return Err(trouble.or_timed_out(who)) };
                events::acquired(&candidate.standing.claim, granted.token, client.clock.now().since(started));
                return Ok((candidate.succeed(), granted));
            }
        }
    }
}

/// A row of failures of the store.
#[derive(Default)]
struct Trouble {
    since: Option<Moment>,
    last: Option<Error>,
}

impl Trouble {
    /// One more: how long to wait before asking again, or the error itself once patience is at its end.
    fn met(&mut self, e: Error, now: Moment, patience: Duration, backoff: &mut Backoff) -> Result<Duration> {
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= patience {
            return Err(e);
        }
        self.last = Some(e);
        Ok(backoff.next())
    }

    /// The error at the deadline: the store's trouble, if that is why.
    fn or_timed_out(self, who: Option<Contention>) -> Error {
        match (self.last, who) {
            (Some(e), _) => e,
            (None, Some(who)) => Error::contended(ErrorKind::TimedOut, who),
            (None, None) => Error::new(ErrorKind::Ambiguous, "the store did not answer in time"),
        }
    }
}

/// A claim on its way. Whatever it has left in the store when it is dropped is withdrawn in the background.
struct Candidate<'a> {
    client: &'a Arc<Client>,
    standing: Arc<Standing>,
    /// The request that is out, if one is.
    flight: Option<Flight>,
    /// An instant before the latest request was sent.
    stamp: Moment,
    /// Something may be in the store.
    traces: bool,
    /// An attempt stayed unanswered.
    doubt: bool,
}

enum Answer {
    Landed(Result<Claimed>),
    Late,
}

enum Woken {
    Granted,
    Again,
    Late,
}

impl<'a> Candidate<'a> {
    fn new(client: &'a Arc<Client>, claim: Claim) -> Candidate<'a> {
        let standing = Arc::new(Standing::new(Arc::new(claim), client.clock.clone()));
        // The ear is open before the claim is sent.
        client.bells.listen(standing.claim.id, standing.clone());
        let stamp = client.clock.now();
        Candidate { client, standing, flight: None, stamp, traces: false, doubt: false }
    }

    /// Sends the claim (again) and waits for the answer. At the deadline the request stays in flight.
    async fn claim(&mut self, deadline: Option<Moment>) -> Answer {
        if let Err(closed) = self.client.open() {
            return Answer::Landed(Err(closed));
        }
        let (backend, claim) = (self.client.backend.clone(), self.standing.claim.clone());
        self.stamp = self.client.clock.now();
        // An answer that comes after the lease would be worth nothing.
        let limit = self.stamp + claim.ttl;
        let until = deadline.map_or(limit, |deadline| deadline.min(limit));
        let traces_before = std::mem::replace(&mut self.traces, true);
        let flight = self.flight.insert(Box::pin(async move { backend.claim(&claim).await }));
        let answer = tokio::select! {
            biased;
            answer = flight => Some(answer),
            () = self.client.clock.sleep_until(until) => None,
        };
        match answer {
            Some(answer) => {
                self.flight = None;
                match answer.as_ref().err().map(Error::kind) {
                    Some(ErrorKind::Ambiguous) => self.doubt = true,
                    // The store may have seen what is wrong with the claim only in line.
                    Some(ErrorKind::Invalid) => {}
                    Some(kind) if !kind.may_have_been_executed() => self.traces = traces_before,
                    _ => {}
                }
                // What lands after `close` becomes no guard.
                Answer::Landed(self.client.open().and(answer))
            }
            None if until < limit => Answer::Late,
            None => {
                self.flight = None;
                self.doubt = true;
                Answer::Landed(Err(Error::new(ErrorKind::Ambiguous, "the store did not answer within the lease")))
            }
        }
    }

    /// Waits for a grant, a bell, the nap's end or the deadline.
    async fn wait(&mut self, nap: Option<Moment>, deadline: Option<Moment>) -> Woken {
        loop {
            let changed = self.standing.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.standing.look() {
                Look::Granted => return Woken::Granted,
                Look::Rung => return Woken::Again,
                Look::Nothing => {}
            }
            let now = self.client.clock.now();
            if deadline.is_some_and(|at| at <= now) {
                return Woken::Late;
            }
            if nap.is_none_or(|at| at <= now) {
                return Woken::Again;
            }
            let until = nap.into_iter().chain(deadline).min().unwrap_or(now);
            tokio::select! {
                () = changed => {}
                () = self.client.clock.nap_until(until) => {}
            }
        }
    }

    /// The store has said that nothing of this claim is left; true unless an earlier attempt is still unaccounted for.
    fn left_nothing(&mut self) {
        self.traces = self.doubt;
    }

    /// From here on the caller answers for it, and the keeper renews it.
    fn succeed(mut self) -> Arc<Standing> {
        self.client.keep(&self.standing);
        self.traces = false;
        self.standing.clone()
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        if self.standing.ends().is_some() {
            return; // it became a hold
        }
        self.client.forget(&self.standing);
        if self.traces {
            self.client.release(Release { flight: self.flight.take(), ..Release::of(&self.standing) });
        }
    }
}
