//! A claim on its way, or several that are claimed together: the requests, the waits, and the
//! withdrawal when the caller leaves.
//!
//! A request that was sent cannot be taken back. When the caller leaves, its answer may still be on
//! its way, and a withdrawal that overtakes it would leave a lock that no client knows. The
//! acquisition therefore keeps the request and hands it over together with the withdrawal, and the
//! withdrawal waits for it.
//!
//! It also remembers whether something of it *may* be in the store. A request that was surely not
//! executed leaves nothing, and then dropping the future sends nothing: a loop of refused tries
//! must not cost a withdrawal each.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::clock::Moment;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::grant::{Claimed, ClaimedAll};
use crate::engine::claim_state::{Bounds, ClaimState, Woken};
use crate::engine::client::Client;
use crate::engine::concurrency_limit::Slot;
use crate::engine::keeper::Work;
use crate::engine::release::{InFlight, Release, Reply};
use crate::support::fault;

/// A claim on its way. When it is dropped, everything that it has left in the store is withdrawn in
/// the background.
pub(crate) struct Acquisition<'a> {
    pub(crate) client: &'a Arc<Client>,
    pub(crate) state: Arc<ClaimState>,
    /// The claims that are made together with it, all or none.
    pub(crate) others: Vec<Arc<ClaimState>>,
    /// The index of the claim that the latest refusal was about.
    pub(crate) refused: usize,
    /// The unanswered request, if there is one.
    in_flight: Option<InFlight>,
    /// An instant before the first request was sent.
    began: Option<Moment>,
    /// An instant before the latest request was sent.
    pub(crate) stamp: Moment,
    /// The moment when the answer to the latest request came, or when the wait for it ended.
    pub(crate) heard: Moment,
    /// Something may be in the store.
    traces: bool,
    /// An attempt stayed unanswered, or was granted too late: a refusal need not mean that nothing is left.
    doubt: bool,
    /// The claims are holds now, and others are responsible for them.
    held: bool,
}

/// The time limits of a request that claims.
pub(crate) struct Patience {
    /// The caller's deadline, until it is seen to have passed.
    pub(crate) deadline: Option<Moment>,
    /// The moment until which it may be answered, some time after the deadline.
    pub(crate) until: Option<Moment>,
    /// The limit for its answer, counted from the first request that was sent.
    pub(crate) answer: Option<Duration>,
    /// The limit for the wait for a slot among the claims of this client, while the store answers
    /// none of them.
    pub(crate) in_queue: Duration,
    /// The caller waits for no further answer.
    pub(crate) is_last: bool,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(
        client: &'a Arc<Client>,
        claim: Claim,
        others: Vec<Claim>,
        now: Moment,
        bounds: Bounds,
    ) -> Acquisition<'a> {
        let state = |claim| {
            let state = Arc::new(ClaimState::new(claim, client.clock.clone(), bounds));
            // The listener is open before the claim is sent.
            client.notifier.listen(state.claim.id, state.clone());
            state
        };
        let (state, others) = (state(claim), others.into_iter().map(state).collect());
        let in_flight = None;
        let refused = 0;
        let traces = false;
        let doubt = false;
        let held = false;
        Acquisition {
            client,
            state,
            others,
            refused,
            in_flight,
            began: None,
            stamp: now,
            heard: now,
            traces,
            doubt,
            held,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<ClaimState>> {
        std::iter::once(&self.state).chain(&self.others)
    }

    /// Makes one request for all claims of this acquisition, in their original form. It keeps its
    /// slot until it is answered. The caller waits for no further answer if it `is_last`.
    fn request(&self, slot: Slot, is_last: bool) -> InFlight {
        let backend = self.client.backend.clone();
        let state = self.state.clone();
        if is_last && self.others.is_empty() {
            let claim = Claim {
                is_last,
                ..state.claim.clone()
            };
            return InFlight::new(async move {
                let _slot = slot;
                backend.claim(&claim).await.map(Reply::One)
            });
        }
        if self.others.is_empty() {
            return InFlight::new(async move {
                let _slot = slot;
                backend.claim(&state.claim).await.map(Reply::One)
            });
        }
        let claims: Vec<Claim> = self.all().map(|state| state.claim.clone()).collect();
        InFlight::new(async move {
            let _slot = slot;
            backend.claim_all(&claims).await.map(Reply::All)
        })
    }

    /// Sends the claim (again) as soon as it has a slot among those of this client, and waits for
    /// the answer. Returns `None` if the limits of `patience` have passed: the request then stays
    /// in flight. `now` is the current moment.
    pub(crate) async fn claim(
        &mut self,
        now: Moment,
        patience: &mut Patience,
    ) -> Result<Option<Claimed>> {
        let concurrency_limit =
            &self.client.concurrency_limits[usize::from(self.state.place().is_some())];
        self.client.open()?;
        (self.stamp, self.heard) = (now, now);
        self.may_begin(now)?;
        let slot = match concurrency_limit.try_enter(now) {
            Some(slot) => slot,
            None => {
                let entered = concurrency_limit
                    .enter(patience.until, patience.in_queue)
                    .await;
                let now = self.client.clock.now();
                (self.stamp, self.heard) = (now, now);
                // The wait for a slot was limited by the moment when the last request is over.
                patience.deadline.take_if(|at| *at <= now);
                // Meanwhile the client may have been closed, or may keep more leases than the store
                // renews in time.
                let slot = self.client.open().and(entered)?;
                self.may_begin(now)?;
                slot
            }
        };
        // An answer that comes after the lease would be worth nothing.
        let limit = self.stamp + self.state.claim.ttl;
        let began = *self.began.get_or_insert(self.stamp);
        let answer_by = patience.answer.map(|answer| began + answer);
        let until = patience
            .until
            .into_iter()
            .chain(answer_by)
            .fold(limit, Moment::min);
        let traces_before = std::mem::replace(&mut self.traces, true);
        let request = self.request(slot, patience.is_last);
        let in_flight = self.in_flight.insert(request);
        let answer = loop {
            // The deadline is seen to pass, so that an answer that comes in the last moment is not
            // taken for a caller that polls late.
            let wakes = patience.deadline.map_or(until, |at| at.min(until));
            let answer = tokio::select! {
                biased;
                answer = &mut in_flight.request => Some(answer),
                () = self.client.clock.sleep_until(wakes) => None,
            };
            self.heard = self.client.clock.now();
            if answer.is_some() || wakes == until {
                break answer;
            }
            patience.deadline = None;
        };
        match answer {
            Some(answer) => {
                self.in_flight = None;
                if answer.is_ok() {
                    concurrency_limit.answered(self.heard);
                }
                match answer.as_ref().err().map(Error::kind) {
                    Some(ErrorKind::Ambiguous) => self.doubt = true,
                    // The store may have seen what is wrong with the claim only in the queue.
                    Some(ErrorKind::Invalid) => {}
                    Some(kind) if !kind.may_have_been_executed() => self.traces = traces_before,
                    _ => {}
                }
                let answer = answer.and_then(|reply| self.learn(reply));
                // An answer that arrives after `close` becomes no guard.
                self.client.open().and(answer).map(Some)
            }
            None if until < limit => Ok(None),
            None => {
                self.in_flight = None;
                self.doubt = true;
                Err(Error::new(
                    ErrorKind::Ambiguous,
                    "the store did not answer within the lease",
                ))
            }
        }
    }

    /// Refuses a claim that surely has nothing in the store yet, if it could cost another hold of
    /// this client its lease.
    fn may_begin(&self, now: Moment) -> Result<()> {
        if !self.traces && self.client.keeper.is_behind(now, self.state.claim.ttl) {
            let why = "this client keeps more locks than its store renews in time, and takes no more before that has changed";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        Ok(())
    }

    /// Returns the answer for the first claim, and passes their grants on to the other claims.
    fn learn(&mut self, reply: Reply) -> Result<Claimed> {
        let grants = match reply {
            Reply::One(claimed) => return Ok(claimed),
            Reply::All(ClaimedAll::Busy(refused, by)) => {
                self.refused = refused.min(self.others.len());
                return Ok(Claimed::Busy(by));
            }
            Reply::All(ClaimedAll::Granted(grants)) => grants,
        };
        self.doubt = true;
        let all = grants.len() == self.all().count();
        let mut grants = grants.into_iter();
        let first = grants.next().filter(|_| all);
        self.others
            .iter()
            .zip(grants)
            .for_each(|(state, grant)| state.grant(grant, self.stamp));
        let internal = || {
            Error::new(
                ErrorKind::Internal,
                "the store did not answer for each name",
            )
        };
        first.map(Claimed::Granted).ok_or_else(internal)
    }

    /// Waits for a grant, a notification, the poll interval's end or the deadline.
    pub(crate) async fn wait(
        &mut self,
        poll_at: Option<Moment>,
        deadline: Option<Moment>,
    ) -> Woken {
        loop {
            if let Some(woken) = self.take_change() {
                return woken;
            }
            let changed = self.state.changed.notified();
            // A change before this is seen here, one after it ends the wait.
            if let Some(woken) = self.take_change() {
                return woken;
            }
            let now = self.client.clock.now();
            if deadline.is_some_and(|at| at <= now) {
                return Woken::Late;
            }
            if poll_at.is_none_or(|at| at <= now) {
                return Woken::Again;
            }
            drop(self.client.register_this_runtime());
            let until = poll_at.into_iter().chain(deadline).min().unwrap_or(now);
            tokio::select! {
                biased;
                () = changed => {}
                () = self.client.clock.coarse_sleep_until(until) => {}
            }
        }
    }

    /// Returns the change. The claims together are granted only when each of them is.
    fn take_change(&self) -> Option<Woken> {
        let others = self
            .others
            .iter()
            .all(|state| state.take_change() == Some(Woken::Granted));
        self.state
            .take_change()
            .filter(|woken| others || *woken != Woken::Granted)
    }

    /// The store has answered that nothing of this claim is left. This is reliable unless an
    /// earlier attempt stayed unanswered.
    pub(crate) fn left_nothing(&mut self) {
        self.traces = self.doubt;
    }

    /// Makes the caller responsible for the holds from now on; the keeper renews them.
    pub(crate) fn succeed(mut self, now: Moment) {
        self.all().for_each(|state| self.client.keep(state, now));
        self.held = true;
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.held {
            return;
        }
        self.all().for_each(|state| self.client.forget(state));
        if self.traces && !fault("no-withdrawal") {
            let in_flight = self.in_flight.take();
            self.client.work(Work::Withdraw(Release {
                in_flight,
                ..Release::of(self.all())
            }));
        }
    }
}
