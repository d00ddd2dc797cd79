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
//! future's, and the usual case has no hop between tasks. When the caller goes away, the keeper
//! adopts the unfinished work.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::{Claim, WaitPolicy};
use crate::backend::clock::Moment;
use crate::backend::completion::Completion;
use crate::backend::contention::Contention;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::grant::{Claimed, Waiting};
use crate::engine::acquisition::{Acquisition, Patience};
use crate::engine::backoff::{Backoff, jittered};
use crate::engine::claim_state::{Bounds, ClaimState, Granted, Woken};
use crate::engine::client::Client;
use crate::engine::events;
use crate::engine::wait::Wait;

/// The time that a bounded acquire may take beyond its deadline, for one last request.
const LAST_ATTEMPT: Duration = Duration::from_millis(40);
/// The time for which a try is repeated after a failure of its way to the store, for example a
/// broken connection: a new connection is made within it. A failure that lasts longer is returned
/// to the caller, and so is a refusal of the server, at once.
const TRY_AGAIN_FOR: Duration = Duration::from_millis(250);
/// The time that a try waits for the answer of a store.
const TRY_WAITS: Duration = Duration::from_secs(2);

/// The end of an acquire that did not fail.
pub(crate) enum Acquired {
    Hold(Taken),
    /// The work that the claim asks for is done.
    Done(Completion),
}

/// A hold that no guard has yet, its grant, and the moment since which it is held.
pub(crate) struct Taken {
    pub(crate) state: Arc<ClaimState>,
    pub(crate) granted: Granted,
    pub(crate) at: Moment,
}

/// Takes the lock. The caller has checked that the client is ready. The returned hold is renewed
/// and listened for, and not yet given to a guard. `outage_since` is the moment since which the
/// store is known to have answered no claim.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    mut claim: Claim,
    started: Moment,
    wait: Wait,
    max_hold: Option<Duration>,
    outage_since: Option<Moment>,
) -> Result<Acquired> {
    if let Wait::Try = wait {
        claim.policy = WaitPolicy::Try;
    }
    let mut now = started;
    loop {
        let left = wait.left(now.since(started));
        let bounds = Bounds {
            max_hold,
            deadline: left.ends_at(now),
        };
        let mut acquisition = Acquisition::new(client, claim, Vec::new(), now, bounds);
        match pursue(&mut acquisition, left, outage_since).await? {
            Pursued::Held(granted, at) => {
                let state = acquisition.state.clone();
                acquisition.succeed(at);
                return Ok(Acquired::Hold(Taken { state, granted, at }));
            }
            Pursued::Done(completion) => return Ok(Acquired::Done(completion)),
            // A claim that was released is not sent again: a new one is made.
            Pursued::GivenBack => {}
        }
        now = client.clock.now();
        claim = Claim {
            id: client.claim_id(now)?,
            ..acquisition.state.claim.clone()
        };
    }
}

/// Takes all of these claims in one step, or none. They are tries: `wait` only bounds the wait for
/// a store that does not answer. An error comes with the index of the claim that it is about.
pub(crate) async fn acquire_all(
    client: &Arc<Client>,
    first: Claim,
    others: Vec<Claim>,
    wait: Wait,
    max_hold: Option<Duration>,
) -> Result<Vec<Taken>, (usize, Error)> {
    client.ready().map_err(|e| (0, e))?;
    let now = client.clock.now();
    let bounds = Bounds {
        max_hold,
        deadline: wait.ends_at(now),
    };
    let mut acquisition = Acquisition::new(client, first, others, now, bounds);
    let pursued = pursue(&mut acquisition, wait, None).await;
    let (granted, at) = match pursued {
        Ok(Pursued::Held(granted, at)) => (granted, at),
        Ok(Pursued::GivenBack | Pursued::Done(_)) => {
            return Err((acquisition.refused, too_slow()));
        }
        Err(e) => return Err((acquisition.refused, e)),
    };
    let mut taken = vec![Taken {
        state: acquisition.state.clone(),
        granted,
        at,
    }];
    for (i, state) in acquisition.others.iter().enumerate() {
        let granted = state.take_grant(at).ok_or_else(|| (i + 1, too_slow()))?;
        taken.push(Taken {
            state: state.clone(),
            granted,
            at,
        });
    }
    acquisition.succeed(at);
    Ok(taken)
}

fn too_slow() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store answers more slowly than the lease lasts",
    )
}

/// The end of a pursuit that did not fail.
enum Pursued {
    /// The claim is granted and is a hold since this moment.
    Held(Granted, Moment),
    /// The claim was granted, and given back because no caller took it.
    GivenBack,
    /// The work that the claim asks for is done.
    Done(Completion),
}

/// Asks, waits and asks again, until the claim is granted and is a hold.
async fn pursue(
    acquisition: &mut Acquisition<'_>,
    wait: Wait,
    outage_since: Option<Moment>,
) -> Result<Pursued> {
    let client = acquisition.client;
    let started = acquisition.stamp;
    let mut pursuit = Pursuit::new(
        client,
        wait,
        acquisition.state.claim.ttl,
        started,
        outage_since,
    );
    let mut now = started;
    loop {
        if acquisition.state.is_given_back() {
            return match pursuit.deadline {
                Some(at) if at <= client.clock.now() => Err(Error::timed_out(not_polled())),
                _ => Ok(Pursued::GivenBack),
            };
        }
        let answer = acquisition.claim(now, &mut pursuit.patience).await;
        let poll_in = match pursuit.learn(acquisition, answer)? {
            Next::Granted => None,
            Next::AskIn(delay) => Some(delay),
            Next::Done(completion) => return Ok(Pursued::Done(completion)),
        };
        let poll_at = poll_in.map(|poll_in| acquisition.heard + poll_in);
        let woken = acquisition.wait(poll_at, pursuit.deadline).await;
        // An immediate grant needs no further look at the clock.
        now = if poll_at.is_some() {
            client.clock.now()
        } else {
            acquisition.heard
        };
        if let Woken::Again = woken {
            continue;
        }
        let last = match woken {
            // One last attempt, so that a lock that was freed just now is not missed.
            Woken::Late => match pursuit.look_once_more(acquisition, now).await? {
                Last::Refused(why) => Some(why),
                Last::Done(completion) => return Ok(Pursued::Done(completion)),
            },
            _ => None,
        };
        if last.is_some() {
            now = client.clock.now();
        }
        // It may also have been granted by a notification meanwhile.
        if let Some(granted) = acquisition.state.take_grant(now) {
            events::acquired(&acquisition.state.claim, granted.token, now.since(started));
            return Ok(Pursued::Held(granted, now));
        }
        if let Some(why) = last {
            return Err(if acquisition.state.is_given_back() {
                Error::timed_out(not_polled())
            } else {
                why
            });
        }
    }
}

/// The contention in the error of a bounded acquire that was not polled.
pub(crate) fn not_polled() -> Contention {
    Contention::by("this acquire itself, which was granted and not polled in time")
}

/// The next step of a pursuit, by the outcome of a request.
enum Next {
    /// The claim was granted.
    Granted,
    /// The claim is sent again after this delay, if nothing notifies before.
    AskIn(Duration),
    /// The work that the claim asks for is done.
    Done(Completion),
}

/// The outcome of the last request at a deadline.
enum Last {
    /// The reason why the claim is not granted, which counts only if it is not granted by now.
    Refused(Error),
    /// The work that the claim asks for is done.
    Done(Completion),
}

/// The limits of the pursuit of a claim, and the facts learnt during it.
struct Pursuit<'a> {
    client: &'a Client,
    is_try: bool,
    deadline: Option<Moment>,
    patience: Patience,
    /// The time for which failures of the store are retried.
    retry_budget: Duration,
    ttl: Duration,
    /// Set from the first failure on, until the store answers again.
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
        let deadline = wait.ends_at(started);
        let is_try = matches!(wait, Wait::Try);
        let retry_budget = match wait {
            Wait::Try => TRY_AGAIN_FOR,
            Wait::For(_) => Duration::MAX,
            Wait::Forever => ttl,
        };
        let patience = Patience {
            deadline,
            until: deadline.map(|at| at + LAST_ATTEMPT),
            answer: is_try.then_some(TRY_WAITS),
            in_queue: if is_try {
                TRY_WAITS
            } else {
                retry_budget.min(ttl)
            },
            is_last: false,
        };
        Pursuit {
            client,
            is_try,
            deadline,
            patience,
            retry_budget,
            ttl,
            backoff: None,
            outage: Outage {
                since: outage_since,
                ..Outage::default()
            },
            holder: None,
        }
    }

    /// Asks a last time at the deadline, if there is time for it.
    async fn look_once_more(
        &mut self,
        acquisition: &mut Acquisition<'_>,
        now: Moment,
    ) -> Result<Last> {
        let polls_late = self.patience.deadline.take().is_some();
        if self.patience.until.is_none_or(|until| until <= now) {
            if !polls_late {
                // The answer to the request that was under way has taken all of that time.
                return Ok(Last::Refused(self.late()));
            }
            // A caller that polls late still has the full time for this request.
            self.patience.until = Some(now + LAST_ATTEMPT);
        }
        self.patience.is_last = true;
        let answer = acquisition.claim(now, &mut self.patience).await;
        let state = &acquisition.state;
        Ok(Last::Refused(match answer {
            Ok(Some(Claimed::Done(completion))) => {
                acquisition.left_nothing();
                return Ok(Last::Done(completion));
            }
            Ok(Some(Claimed::Granted(grant))) => {
                state.grant(grant, acquisition.stamp);
                too_slow()
            }
            Ok(Some(Claimed::Waiting(waiting))) => {
                state.wait_at(waiting.place);
                Error::timed_out(waiting.who)
            }
            Ok(Some(Claimed::Busy(by))) => {
                acquisition.left_nothing();
                Error::contended(by)
            }
            // The request may be executed after the release of a grant that came meanwhile: that
            // grant is withdrawn with it.
            Ok(None) => return Err(self.late()),
            Err(e) => self.not_sent_in_time(e),
        }))
    }

    /// Processes the outcome of a request. Returns the next step, or the error that ends the
    /// pursuit.
    fn learn(
        &mut self,
        acquisition: &mut Acquisition<'_>,
        answer: Result<Option<Claimed>>,
    ) -> Result<Next> {
        let state = &acquisition.state;
        let asked = acquisition.stamp;
        let now = acquisition.heard;
        if let (Ok(Some(_)), 1..) = (&answer, self.outage.failures) {
            let lasted = self
                .outage
                .since
                .map_or(Duration::ZERO, |since| now.since(since));
            events::claim_answered(&state.claim, self.outage.failures, lasted);
            self.outage.failures = 0;
        }
        match answer {
            Ok(None) => Err(self.late()),
            Ok(Some(Claimed::Granted(grant))) if grant.validity.until(asked) <= now => {
                // It took longer to hear of the grant than it lasts.
                state.wait_at(grant.place);
                self.ask_again(too_slow(), now).map(Next::AskIn)
            }
            Ok(Some(Claimed::Granted(grant))) => {
                state.grant_at(now, grant, asked);
                Ok(Next::Granted)
            }
            Ok(Some(Claimed::Done(completion))) => {
                acquisition.left_nothing();
                Ok(Next::Done(completion))
            }
            Ok(Some(Claimed::Busy(by))) => {
                acquisition.left_nothing();
                Err(Error::contended(by))
            }
            Ok(Some(Claimed::Waiting(waiting))) => {
                state.wait_at(waiting.place.clone());
                self.waits(state, waiting, asked).map(Next::AskIn)
            }
            Err(e) if e.kind().is_outage() => {
                if self.outage.failures == 0 {
                    events::claim_failed(&state.claim, &e);
                }
                self.outage.failures += 1;
                self.ask_again(e, now).map(Next::AskIn)
            }
            Err(e) => Err(self.not_sent_in_time(e)),
        }
    }

    /// Names the holder in the last answer, if the claim was not sent in time because others of this client were before it.
    fn not_sent_in_time(&mut self, e: Error) -> Error {
        if e.kind() != ErrorKind::TimedOut {
            return e;
        }
        self.holder.take().map_or(e, Error::timed_out)
    }

    /// Processes the place in the queue that the store answered. The lease of the place began at
    /// the earliest when the place was asked for. Returns the delay before the next request.
    fn waits(
        &mut self,
        state: &Arc<ClaimState>,
        waiting: Waiting,
        asked: Moment,
    ) -> Result<Duration> {
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
        // A store that gives no delay is asked again once per lease: no wait rests on its
        // notifications alone.
        Ok(waiting
            .retry_after
            .unwrap_or_else(|| jittered(self.ttl, &mut self.client.random())))
    }

    /// Processes a failure of the store. Returns the delay before the next request, or the error
    /// itself at the end of the retry budget.
    fn ask_again(&mut self, e: Error, now: Moment) -> Result<Duration> {
        let since = *self.outage.since.get_or_insert(now);
        let is_answer = self.is_try && e.is_answer();
        if is_answer || now.since(since) >= self.retry_budget {
            return Err(e);
        }
        self.outage.last = Some(e);
        Ok(self
            .backoff
            .get_or_insert_with(|| Backoff::new(self.client.random()))
            .next())
    }

    /// The error at the deadline: the latest failure of the store if there was one, or else a
    /// timeout by the holder of the last answer, or else that the store did not answer.
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
    failures: u32,
    last: Option<Error>,
}
