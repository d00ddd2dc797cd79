//! The keeper: one task per store client that renews everything in batches, ends holds that have
//! run out, and does the background work.
//!
//! There is one keeper per client, not one task per lock. Ten thousand locks need then a few
//! requests per third of a lease, and the end of validity of each is seen by the same task.
//!
//! Renewals go out side by side. One batch for everything, repeated as a whole when it is late,
//! would lose all locks at once as soon as it takes too long. Here a late request is not given up:
//! another one overtakes it, and its answer counts whenever it comes. The number of requests under
//! way follows the capacity of the store: it grows by one for each that is answered in time, and is
//! halved when some are late.
//!
//! No lock is held while user code runs. Wakers, `tracing` subscribers and the drop of a guard are
//! code of other authors: the state changes first, and the values to notify or drop are returned to
//! the caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::backend::clock::{Clock, Moment};
use crate::backend::completion::Completion;
use crate::backend::contract::Backend;
use crate::backend::error::Result;
use crate::backend::grant::margin;
use crate::backend::loss::Loss;
use crate::backend::notifier::Notifier;
use crate::engine::claim_state::ClaimState;
use crate::engine::events;
use crate::engine::release::Release;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, Notify};
use crate::support::{fault, locked};
use kept::{Kept, NEVER};
use registry::Registry;
use standby::Standby;
pub(crate) use work::Work;

mod agenda;
mod background;
mod batch;
mod kept;
mod registry;
mod renewal_window;
mod results;
mod standby;
mod takeover;
mod task;
mod work;

/// The greatest time for which a store is asked to keep a hold beyond its `min_hold`: synchronized
/// clocks do not differ by more, however long the `min_hold` is.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);
/// The number of releases that are sent at once, so that renewals do not wait behind them.
const RELEASING: usize = 128;

pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    clock: Clock,
    notifier: Notifier,
    random: Mutex<fastrand::Rng>,
    registry: Mutex<Registry>,
    /// The moment, in nanoseconds, until which no further claim with a short lease is taken,
    /// because renewals are behind.
    behind_until: AtomicU64,
    releasing: Semaphore,
    standby: Arc<Standby<Keeper>>,
    drained: Notify,
}

impl Keeper {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        notifier: Notifier,
        random: fastrand::Rng,
    ) -> Keeper {
        let clock = backend.clock();
        let random = Mutex::new(random);
        let registry = Mutex::default();
        let standby = Arc::new(Standby::new());
        let drained = Notify::new();
        let releasing = Semaphore::new(RELEASING);
        let behind_until = AtomicU64::new(0);
        Keeper {
            backend,
            clock,
            notifier,
            random,
            registry,
            behind_until,
            releasing,
            standby,
            drained,
        }
    }

    /// Returns whether renewals of the kept claims are so late that one more claim with this lease
    /// could cost another its own. A claim with a lease three times as long, or longer, is renewed
    /// after those that are late, and so seldom that it does not count.
    pub(crate) fn is_behind(&self, now: Moment, ttl: Duration) -> bool {
        (now + ttl / 6).as_nanos() < self.behind_until.load(Ordering::Relaxed)
    }

    /// Records that leases of `ttl` are behind, until each of them has been renewed once more.
    fn falls_behind(&self, now: Moment, ttl: Duration) {
        self.behind_until
            .fetch_max((now + ttl / 2).as_nanos(), Ordering::Relaxed);
    }

    /// Renews `state` from now on; a claim that is kept already stays in its batch. Returns whether
    /// the keeper must be woken. `at` is the current moment for a grant, and for a place the moment
    /// when it was asked for, as its lease may have begun then.
    pub(crate) fn keep(&self, state: &Arc<ClaimState>, at: Moment) -> bool {
        let renew_at = at + state.look().renew_in(at);
        let mut registry = locked(&self.registry);
        let at = registry.keep(state, at, renew_at);
        registry.must_wake(at)
    }

    /// Schedules `state` anew: its end has changed.
    pub(crate) fn reschedule(&self, state: &ClaimState) {
        let mut registry = locked(&self.registry);
        let at = registry.schedule(state.kept_as());
        let must_wake = registry.must_wake(at);
        drop(registry);
        if must_wake {
            self.wake();
        }
    }

    fn change(&self, state: &ClaimState, change: impl FnOnce(&mut Kept)) {
        let mut registry = locked(&self.registry);
        registry.kept.get_mut(&state.kept_as()).map(change);
        registry.schedule(state.kept_as());
    }

    pub(crate) fn forget(&self, state: &ClaimState) {
        let gone = locked(&self.registry).remove(state.kept_as());
        drop(gone);
    }

    /// Keeps the hold until `at`, and releases it then. `lapsing` is true if the store is asked
    /// meanwhile to let it end by itself.
    pub(crate) fn release_at(&self, state: &Arc<ClaimState>, at: Moment, lapsing: bool) {
        self.keep(state, self.clock.now());
        self.change(state, |kept| {
            (kept.release_at, kept.lapsing) = (at, lapsing);
        });
    }

    /// Asks the store once to let a hold end at `at` without this client, and no sooner. A margin
    /// is added, because the store's clock may run faster than the client's.
    pub(crate) async fn ask_to_lapse(&self, state: &Arc<ClaimState>, at: Moment) -> Result<()> {
        let claim = state.now();
        let place = state.place();
        let rest = at.since(self.clock.now());
        let more = if fault("exact-lapse") {
            Duration::ZERO
        } else {
            margin(rest).min(LONGEST_MARGIN)
        };
        self.backend
            .release_after(&claim, place.as_ref(), rest + more)
            .await
    }

    /// Forgets a hold that the store lets end by itself: nothing renews it any more.
    pub(crate) fn has_lapsed(&self, state: &ClaimState) {
        self.notifier.unlisten(state.claim.id);
        self.forget(state);
        self.notify_if_drained();
        events::lapses(&state.claim);
    }

    /// Forgets a hold whose completion has been answered, or given up. The store has ended the hold
    /// with the completion; without one it is released.
    pub(crate) fn has_completed(&self, state: &Arc<ClaimState>, answer: &Result<Completion>) {
        self.notifier.unlisten(state.claim.id);
        self.forget(state);
        match answer {
            Ok(completion) => events::completed(&state.claim, completion.token),
            Err(e) => {
                events::completion_given_up(&state.claim, e);
                self.queue(Work::Withdraw(Release::of([state])));
                self.wake();
            }
        }
        self.notify_if_drained();
    }

    /// Renews the hold as before, because the store does not let holds end by themselves.
    pub(crate) fn outlives_nothing(&self, state: &ClaimState) {
        self.change(state, |kept| kept.lapsing = false);
        self.wake();
    }

    pub(crate) fn queue(&self, work: Work) {
        locked(&self.registry).works.queue(work);
    }

    /// Wakes the keeper's task, and the runtimes on standby, which check that it runs.
    pub(crate) fn wake(&self) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        let runner = registry.runner.clone();
        registry.called.get_or_insert(now);
        drop(registry);
        if let Some(runner) = runner {
            runner.notify_one();
        }
        self.standby.call();
    }

    /// The client is gone; the work that is left is still done.
    pub(crate) fn no_more_work(self: &Arc<Keeper>) {
        let mut registry = locked(&self.registry);
        registry.no_more_work = true;
        let left_alone = registry.runner.is_none() && !registry.is_drained();
        drop(registry);
        if left_alone {
            self.standby.hand_over(self);
        }
        self.drained.notify_waiters();
        self.wake();
    }

    /// Ends all kept claims: holds are lost, waiters check again, and all are withdrawn. A hold
    /// whose guard has gone goes on within its `min_hold`, and while its work is being completed,
    /// unless `those_without_guard_too` is true.
    pub(crate) fn end_all(&self, those_without_guard_too: bool) {
        let mut registry = locked(&self.registry);
        let goes_on = |state: &Arc<ClaimState>| {
            let kept = registry.kept.get(&state.kept_as());
            state.is_completing() || kept.is_some_and(|kept| kept.release_at != NEVER)
        };
        let ends = |state: &Arc<ClaimState>| those_without_guard_too || !goes_on(state);
        let ending: Vec<_> = registry.states().into_iter().filter(ends).collect();
        let gone: Vec<_> = ending
            .iter()
            .map(|state| registry.remove(state.kept_as()))
            .collect();
        drop(registry);
        for Kept { state, lapsing, .. } in gone.iter().flatten() {
            self.notifier.unlisten(state.claim.id);
            state.lose(Loss::Gone);
            // A hold that the store may have let lapse ends with its `min_hold`, and a release
            // never overtakes a completion.
            if !lapsing && !state.is_completing() {
                self.queue(Work::Withdraw(Release::of([state])));
            }
        }
    }

    /// Completes when nothing is kept and no background release is left.
    pub(crate) async fn drained(&self) {
        self.until(Registry::is_drained).await;
    }

    /// Completes when there is nothing to do any more, ever.
    pub(crate) async fn stopped(&self) {
        self.until(Registry::has_stopped).await;
    }

    async fn until(&self, is_done: fn(&Registry) -> bool) {
        loop {
            let drained = self.drained.notified();
            if is_done(&locked(&self.registry)) {
                return;
            }
            drained.await;
        }
    }

    fn finished(&self, work: u64) {
        let done = locked(&self.registry).works.finish(work);
        drop(done);
        self.notify_if_drained();
    }

    /// Wakes the tasks that wait for the end of the work.
    fn notify_if_drained(&self) {
        let is_drained = locked(&self.registry).is_drained();
        if is_drained {
            self.drained.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
