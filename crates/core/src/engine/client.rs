//! One client of one store, shared by every lock and guard made of it: the backend, its notifier, the keeper.
//!
//! Everything that is made from one [`Store`](crate::Store) shares one client. Renewals of all
//! locks then go out together, and one place knows whether the store was closed.
//!
//! It also bounds the requests that no lease bounds, such as `inspect` or `evict`: a store that
//! does not answer must not hang its caller.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::claim::ClaimId;
use crate::backend::clock::{Clock, Moment};
use crate::backend::completion::Completion;
use crate::backend::contract::Backend;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::guarantees::Guarantees;
use crate::backend::notifier::Notifier;
use crate::engine::backoff::Backoff;
use crate::engine::claim_ids::ClaimIds;
use crate::engine::claim_state::ClaimState;
use crate::engine::completing::Completing;
use crate::engine::concurrency_limit::ConcurrencyLimit;
use crate::engine::events;
use crate::engine::keeper::{Keeper, Work};
use crate::engine::release::Release;
use crate::support::locked;
use crate::support::sync::Mutex;
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::support::thread::OwnThread;

/// The time that core waits for a request that no lease bounds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a failed release is repeated before its error is returned to the caller.
const RELEASE_AGAIN_FOR: Duration = Duration::from_secs(2);

pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) notifier: Notifier,
    pub(crate) clock: Clock,
    pub(crate) guarantees: Guarantees,
    /// The limits for claims that go to the store for the first time, and for claims that already
    /// have a place. The second kind does not wait behind many new claims.
    pub(crate) concurrency_limits: [Arc<ConcurrencyLimit>; 2],
    pub(crate) keeper: Arc<Keeper>,
    closed: AtomicBool,
    /// True once the store's client is closed; locked while a call closes it.
    ended: tokio::sync::Mutex<bool>,
    thread: Option<OwnThread>,
    random: Mutex<fastrand::Rng>,
    ids: Mutex<ClaimIds>,
}

impl Client {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        mut random: fastrand::Rng,
        thread: Option<OwnThread>,
    ) -> Client {
        let notifier = backend.notifier().cloned().unwrap_or_default();
        let guarantees = backend.guarantees();
        guarantees
            .warnings()
            .iter()
            .for_each(|warning| events::store_warns(&*backend, warning));
        Client {
            notifier: notifier.clone(),
            clock: backend.clock(),
            guarantees,
            concurrency_limits: [(); 2].map(|()| ConcurrencyLimit::new(backend.clock())),
            keeper: Arc::new(Keeper::new(backend.clone(), notifier, random.fork())),
            backend,
            closed: AtomicBool::new(false),
            ended: tokio::sync::Mutex::default(),
            thread,
            random: Mutex::new(random),
            ids: Mutex::default(),
        }
    }

    /// Refuses work after `close`.
    pub(crate) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed());
        }
        Ok(())
    }

    /// Refuses work that cannot be done: after `close`, and outside of a tokio runtime.
    pub(crate) fn ready(&self) -> Result<()> {
        self.open()?;
        self.register_this_runtime()
    }

    /// Lets this runtime run the keeper from now on. It is called when a task of the runtime asks
    /// something, waits, or listens for a loss.
    pub(crate) fn register_this_runtime(&self) -> Result<()> {
        let none = |_| Error::new(ErrorKind::NoRuntime, "no tokio runtime is running here");
        let here = Handle::try_current().map_err(none)?;
        self.keeper
            .register_runtime(self.thread.as_ref().map_or(&here, |thread| &thread.handle));
        Ok(())
    }

    /// Draws the id of a new claim.
    pub(crate) fn claim_id(&self, now: Moment) -> Result<ClaimId> {
        locked(&self.ids).draw(now)
    }

    pub(crate) fn random(&self) -> fastrand::Rng {
        locked(&self.random).fork()
    }

    /// Bounds a request that no lease bounds.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.ask_within(REQUEST_TIMEOUT, request).await
    }

    async fn ask_within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.ready()?;
        let unanswered = || Error::new(ErrorKind::Ambiguous, "the store did not answer in time");
        self.within(limit, request)
            .await
            .unwrap_or_else(|| Err(unanswered()))
    }

    /// `None` if the request took longer than `limit`. It is dropped then.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = self.clock.sleep(limit) => None,
        }
    }

    /// Returns whether the store may have forgotten this claim's hold since it was last confirmed.
    pub(crate) fn is_in_doubt(&self, state: &ClaimState) -> bool {
        !state
            .asked()
            .is_some_and(|asked| self.notifier.is_uninterrupted(asked))
    }

    /// Renews this claim from now on, until it is forgotten or lost. The first renewal is planned
    /// by the part of the lease that is left at `at`.
    pub(crate) fn keep(&self, state: &Arc<ClaimState>, at: Moment) {
        let must_wake = self.keeper.keep(state, at);
        if self.open().is_err() {
            // The claim came just after `close` had ended all others.
            self.end_all(false);
        } else if must_wake {
            self.wake_keeper();
        }
    }

    /// Stops renewing and listening.
    pub(crate) fn forget(&self, state: &ClaimState) {
        self.notifier.unlisten(state.claim.id);
        self.keeper.forget(state);
    }

    /// Does the work in the background, retried until it is done or the lease has run out.
    pub(crate) fn work(&self, work: Work) {
        self.keeper.queue(work);
        self.wake_keeper();
    }

    /// Releases the hold with effect at `at`: the store lets it end by itself then, or the keeper
    /// renews it until then.
    pub(crate) fn release_at(&self, state: &Arc<ClaimState>, at: Moment) {
        let lapses = self.guarantees.min_hold_outlives_process();
        self.keeper.release_at(state, at, lapses);
        if lapses {
            self.work(Work::Lapse(state.clone(), at));
        } else {
            self.wake_keeper();
        }
    }

    /// Releases the hold with effect at `at`, and waits for the store's answer. The release goes on
    /// in the background if it fails or its future is dropped.
    pub(crate) async fn release_at_now(
        self: &Arc<Self>,
        state: &Arc<ClaimState>,
        at: Moment,
        again_until: Moment,
    ) -> Result<()> {
        if !self.guarantees.min_hold_outlives_process() {
            self.release_at(state, at);
            return Ok(());
        }
        self.keeper.release_at(state, at, true);
        let mut pending = Pending {
            client: self,
            work: Some(|| Work::Lapse(state.clone(), at)),
        };
        self.ready()?;
        let ask = || self.keeper.ask_to_lapse(state, at);
        match self.ask_again(state, again_until, ask).await {
            Ok(()) => self.keeper.has_lapsed(state),
            Err(e) if e.kind().is_final() => self.keeper.outlives_nothing(state),
            Err(e) => return Err(e),
        }
        pending.work = None;
        Ok(())
    }

    /// Withdraws the claim and waits for the answer. The withdrawal goes on in the background if it
    /// fails or its future is dropped.
    pub(crate) async fn release_now(
        self: &Arc<Self>,
        state: &Arc<ClaimState>,
        again_until: Moment,
    ) -> Result<()> {
        self.forget(state);
        let mut pending = Pending {
            client: self,
            work: Some(|| Work::Withdraw(Release::of([state]))),
        };
        let place = state.place();
        let ask = || self.backend.release(&state.claim, place.as_ref());
        self.ask_again(state, again_until, ask).await?;
        pending.work = None;
        events::released(&state.claim);
        Ok(())
    }

    /// Asks the store to complete the work of a hold, and to end the hold. The completion goes on in
    /// the background if the future is dropped.
    pub(crate) async fn complete(
        self: &Arc<Self>,
        state: &Arc<ClaimState>,
        completing: Completing,
    ) -> Result<Completion> {
        let mut pending = Pending {
            client: self,
            work: Some(|| Work::Complete(state.clone(), completing.clone())),
        };
        let backoff = Backoff::new(self.random());
        let answer = completing
            .ask(&*self.backend, &self.clock, &state.claim, backoff)
            .await;
        pending.work = None;
        self.keeper.has_completed(state, &answer);
        answer
    }

    /// The moment until which a release that begins now is repeated before its error is returned to
    /// the caller.
    pub(crate) fn release_again_until(&self) -> Moment {
        self.clock.now() + RELEASE_AGAIN_FOR
    }

    /// Asks the store to end a hold, and repeats a failed request until `again_until` while the
    /// lease is valid: a connection that broke just now is no reason for an error. A store that is
    /// silent is waited for until then, too.
    async fn ask_again<F>(
        &self,
        state: &ClaimState,
        again_until: Moment,
        request: impl Fn() -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let mut now = self.clock.now();
        let mut backoff = None;
        loop {
            let left = again_until.since(now);
            let Err(e) = self.ask_within(left, request()).await else {
                return Ok(());
            };
            if backoff.is_none() {
                events::release_unknown(&state.claim, &e);
            }
            now = self.clock.now();
            let pause = backoff
                .get_or_insert_with(|| Backoff::new(self.random()))
                .next();
            let is_late = now + pause >= again_until || state.remaining() <= pause;
            if is_late || e.kind().is_final() {
                return Err(e);
            }
            self.clock.sleep(pause).await;
            now = self.clock.now();
        }
    }

    /// Ends all holds, waits for at most `limit` until they are withdrawn, and closes the store's
    /// client, once.
    pub(crate) async fn close(&self, limit: Duration) -> Result<()> {
        self.register_this_runtime()?;
        self.closed.store(true, Ordering::Release);
        self.concurrency_limits
            .iter()
            .for_each(|concurrency_limit| concurrency_limit.close());
        // As soon as the store's client ends, other clients may hold the locks: by then no hold of
        // this client may be valid.
        self.end_all(false);
        // The wait for another call of `close` is bounded, because that call may not be polled any
        // more.
        let ended = self
            .within(limit.saturating_add(REQUEST_TIMEOUT), self.ended.lock())
            .await;
        if ended.as_deref() == Some(&true) {
            return Ok(());
        }
        let drained = self.within(limit, self.keeper.drained()).await.is_some();
        self.end_all(true);
        let unsure = |text| Error::new(ErrorKind::Ambiguous, text);
        let closed = self.within(REQUEST_TIMEOUT, self.backend.close()).await;
        closed.unwrap_or_else(|| Err(unsure("the store did not answer that it is closed")))?;
        if let Some(mut ended) = ended {
            *ended = true;
        }
        if drained {
            Ok(())
        } else {
            Err(unsure(
                "closed before every background release was answered",
            ))
        }
    }

    fn end_all(&self, those_without_guard_too: bool) {
        self.keeper.end_all(those_without_guard_too);
        self.wake_keeper();
    }

    /// Completes when the keeper has no more work, ever.
    pub(crate) fn keeper_stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let keeper = self.keeper.clone();
        async move { keeper.stopped().await }
    }

    fn wake_keeper(&self) {
        // Outside of a runtime, this fails, and another runtime is woken.
        drop(self.register_this_runtime());
        self.keeper.wake();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.keeper.no_more_work();
        let ended = self.keeper_stopped();
        if let Some(thread) = &mut self.thread {
            thread.outlive(ended);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

/// A withdrawal that goes on in the background if it is dropped.
struct Pending<'a, W: FnOnce() -> Work> {
    client: &'a Client,
    work: Option<W>,
}

impl<W: FnOnce() -> Work> Drop for Pending<'_, W> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.client.work(work());
        }
    }
}
