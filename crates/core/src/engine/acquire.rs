//! The acquire loop: claim, wait for a notification, the poll interval or the deadline, claim again.
//!
//! An acquire is a loop over one idempotent request: claim, wait, claim again with the same id.
//! Lost answers, retries, re-checks of a waiter and the last look at a deadline are all that same
//! request, so there is one path to get right and none for special cases.
//!
//! The loop wakes up for three reasons: a notification of the store, the poll interval, the
//! deadline. Nothing is correct because of a notification. A store that is silent is asked again
//! once per TTL, so a lost notification costs time and never the lock.
//!
//! The caller drives the loop: there is no task per acquire. Waiting then costs no memory but the
//! future's, and the usual case has no hop between tasks. What is left when the caller goes away is
//! adopted by the keeper.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquisition::Acquisition;
use crate::engine::backoff::{Backoff, jittered};
use crate::engine::claim_state::{ClaimState, Granted, Woken};
use crate::engine::client::Client;
use crate::engine::events;
use crate::engine::wait::Wait;
use crate::seam::claim::{Claim, WaitPolicy};
use crate::seam::clock::Moment;
use crate::seam::contention::Contention;
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::grant::{Claimed, Waiting};

/// How much longer than its deadline a bounded acquire may take: one last request.
const LAST_ATTEMPT: Duration = Duration::from_millis(40);

/// A hold that no guard has yet, what is known of its grant, and since when it is held.
pub(crate) struct Taken {
    pub(crate) state: Arc<ClaimState>,
    pub(crate) granted: Granted,
    pub(crate) at: Moment,
}

/// Takes the lock. The caller is ready, and holds what comes back: renewed, listened for, and not yet given to a guard.
/// `outage_since`: from when on the store is known to have answered no claim.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    mut claim: Claim,
    now: Moment,
    wait: Wait,
    max_hold: Option<Duration>,
    outage_since: Option<Moment>,
) -> Result<Taken> {
    if let Wait::Try = wait {
        claim.policy = WaitPolicy::Try;
    }
    let mut acquisition = Acquisition::new(client, claim, Vec::new(), now);
    let (granted, at) = pursue(&mut acquisition, wait, max_hold, outage_since).await?;
    let state = acquisition.state.clone();
    acquisition.succeed(at);
    Ok(Taken { state, granted, at })
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
    let mut acquisition = Acquisition::new(client, first, others, client.clock.now());
    let (granted, at) = pursue(&mut acquisition, wait, max_hold, None).await.map_err(|e| (acquisition.refused, e))?;
    let mut taken = vec![Taken { state: acquisition.state.clone(), granted, at }];
    for (i, state) in acquisition.others.iter().enumerate() {
        let granted = state.take_grant(at, max_hold).ok_or_else(|| (i + 1, too_slow()))?;
        taken.push(Taken { state: state.clone(), granted, at });
    }
    acquisition.succeed(at);
    Ok(taken)
}

fn too_slow() -> Error {
    Error::new(ErrorKind::Unavailable, "the store answers more slowly than the lease lasts")
}

/// Asks, waits and asks again, until the claim is granted and is a hold: since when.
async fn pursue(
    acquisition: &mut Acquisition<'_>,
    wait: Wait,
    max_hold: Option<Duration>,
    outage_since: Option<Moment>,
) -> Result<(Granted, Moment)> {
    let client = acquisition.client;
    let started = acquisition.stamp;
    let mut pursuit = Pursuit::new(client, wait, acquisition.state.claim.ttl, started, outage_since);
    let mut now = started;
    loop {
        let answer = acquisition.claim(now, pursuit.last_attempt, pursuit.in_queue).await;
        let poll_in = pursuit.learn(acquisition, answer)?;
        let poll_at = poll_in.map(|poll_in| acquisition.heard + poll_in);
        let woken = acquisition.wait(poll_at, pursuit.deadline).await;
        // What was granted at once needs no other look at the clock.
        now = if poll_at.is_some() { client.clock.now() } else { acquisition.heard };
        if let Woken::Again = woken {
            continue;
        }
        if let Woken::Late = woken {
            // One last attempt, so that a lock that was freed just now is not missed. It may also be granted by a notification
            // meanwhile.
            let answer = acquisition.claim(now, pursuit.last_attempt, pursuit.in_queue).await;
            now = client.clock.now();
            match answer {
                Ok(Some(Claimed::Granted(grant))) => acquisition.state.grant(grant, acquisition.stamp),
                // It may be executed after a release of what was granted meanwhile: that is withdrawn with it.
                Ok(None) => return Err(pursuit.late()),
                _ => {}
            }
        }
        if let Some(granted) = acquisition.state.take_grant(now, max_hold) {
            events::acquired(&acquisition.state.claim, granted.token, now.since(started));
            return Ok((granted, now));
        }
        if let Woken::Late = woken {
            return Err(pursuit.late());
        }
    }
}

/// For how long a claim is pursued, and what has been learnt meanwhile.
struct Pursuit<'a> {
    client: &'a Client,
    is_try: bool,
    deadline: Option<Moment>,
    /// Until when a request may be answered.
    last_attempt: Option<Moment>,
    /// For how long the failures of the store are retried.
    retry_budget: Duration,
    /// How long to wait for a slot among the claims of this client while the store answers none of them.
    in_queue: Duration,
    ttl: Duration,
    /// From the first failure on, until the store answers again.
    backoff: Option<Backoff>,
    outage: Outage,
    /// The holder in the last answer.
    holder: Option<Contention>,
}

impl<'a> Pursuit<'a> {
    fn new(
        client: &'a Client,
        wait: Wait,
        ttl: Duration,
        started: Moment,
        outage_since: Option<Moment>,
    ) -> Pursuit<'a> {
        let (deadline, retry_budget) = match wait {
            Wait::Try => (None, ttl / 3),
            Wait::For(d) => (Some(started + d), Duration::MAX),
            Wait::Forever => (None, ttl),
        };
        Pursuit {
            client,
            is_try: matches!(wait, Wait::Try),
            deadline,
            last_attempt: deadline.map(|at| at + LAST_ATTEMPT),
            retry_budget,
            in_queue: retry_budget.min(ttl),
            ttl,
            backoff: None,
            outage: Outage { since: outage_since, last: None },
            holder: None,
        }
    }

    /// Takes in what became of a request: how long to wait before the next, if not for what the store grants; or the end.
    fn learn(
        &mut self,
        acquisition: &mut Acquisition<'_>,
        answer: Result<Option<Claimed>>,
    ) -> Result<Option<Duration>> {
        let (state, asked, now) = (&acquisition.state, acquisition.stamp, acquisition.heard);
        match answer {
            Ok(None) => Err(self.late()),
            Ok(Some(Claimed::Granted(grant))) if grant.validity.until(asked) <= now => {
                // It took longer to hear of the grant than it lasts.
                state.wait_at(grant.place);
                self.ask_again(too_slow(), now).map(Some)
            }
            Ok(Some(Claimed::Granted(grant))) => {
                state.grant_at(now, grant, asked);
                Ok(None)
            }
            Ok(Some(Claimed::Busy(by))) => {
                acquisition.left_nothing();
                Err(Error::contended(by))
            }
            Ok(Some(Claimed::Waiting(waiting))) => {
                state.wait_at(waiting.place.clone());
                self.waits(state, waiting, asked).map(Some)
            }
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) => {
                events::claim_failed(&state.claim, &e);
                self.ask_again(e, now).map(Some)
            }
            // It was not sent in time.
            Err(e) if e.kind() == ErrorKind::TimedOut => Err(self.holder.take().map_or(e, Error::timed_out)),
            Err(e) => Err(e),
        }
    }

    /// It has a place in the queue, whose lease began when it was asked for at the earliest: how long to wait there before asking again.
    fn waits(&mut self, state: &Arc<ClaimState>, waiting: Waiting, asked: Moment) -> Result<Duration> {
        if self.is_try {
            return Err(Error::contended(waiting.who));
        }
        if self.holder.is_none() {
            events::waiting(&state.claim, &waiting);
        }
        self.outage = Outage::default();
        self.backoff = None;
        self.client.keep(state, asked);
        self.holder = Some(waiting.who);
        // A store that says nothing is asked again once per lease: no wait rests on its notifications alone.
        Ok(waiting.retry_after.unwrap_or_else(|| jittered(self.ttl, &mut self.client.random())))
    }

    /// The store failed: how long to wait before asking again, or the error itself at the end of the retry budget.
    fn ask_again(&mut self, e: Error, now: Moment) -> Result<Duration> {
        let since = *self.outage.since.get_or_insert(now);
        if now.since(since) >= self.retry_budget {
            return Err(e);
        }
        self.outage.last = Some(e);
        Ok(self.backoff.get_or_insert_with(|| Backoff::new(self.client.random())).next())
    }

    /// The error at the deadline: the store's failure, if that is why.
    fn late(&mut self) -> Error {
        match (self.outage.last.take(), self.holder.take()) {
            (Some(e), _) => e,
            (None, Some(holder)) => Error::timed_out(holder),
            (None, None) => Error::new(ErrorKind::Ambiguous, "the store did not answer in time"),
        }
    }
}

/// Failures of the store with no success between them.
#[derive(Default)]
struct Outage {
    since: Option<Moment>,
    last: Option<Error>,
}
