//! The keeper: one task per store client that renews everything in batches, says when a hold has run out, and does what is
//! left to the background.

use std::future::pending;
use std::sync::{Arc, Mutex};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, Semaphore};

use crate::backend::Backend;
use crate::claim::ClaimId;
use crate::claim_state::ClaimState;
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::events;
use crate::grant::Renewal;
use crate::loss::Loss;
use crate::notifier::Notifier;
use crate::release::Release;
use crate::sync::locked;
use batch::{BatchResult, RenewalBatch};
use registry::{BatchItem, Ended, Kept, Registry};
use standby::{Running, Standby};
pub(crate) use work::Work;

mod batch;
mod registry;
mod standby;
mod work;

/// How many requests that renew are under way at once, at most: fewer while the store takes long for them. Those that may
/// not wait any longer go all the same, once nothing moves.
const BATCHES: usize = 16;

/// How many withdrawals are sent at once: renewals do not stand behind a crowd of them.
const RELEASING: usize = 128;

pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    clock: Clock,
    notifier: Notifier,
    random: Mutex<fastrand::Rng>,
    registry: Mutex<Registry>,
    releasing: Semaphore,
    standby: Arc<Standby>,
    quiet: Notify,
}

impl Keeper {
    pub(crate) fn new(backend: Arc<dyn Backend>, notifier: Notifier, random: fastrand::Rng) -> Keeper {
        let (clock, random, registry) = (backend.clock(), Mutex::new(random), Mutex::default());
        let (standby, quiet, releasing) = (Arc::default(), Notify::new(), Semaphore::new(RELEASING));
        Keeper { backend, clock, notifier, random, registry, releasing, standby, quiet }
    }

    /// Renews `state` from now on; one that is kept already stays in its batch. Says whether the keeper must be woken.
    pub(crate) fn keep(&self, state: &Arc<ClaimState>) -> bool {
        let renew_at = self.clock.now() + state.renew_in();
        let mut registry = locked(&self.registry);
        let at = registry.keep(state, renew_at);
        registry.runner.is_none() || registry.sleeps_past(at)
    }

    /// Looks again at when `state` comes up: its end has changed.
    pub(crate) fn reschedule(&self, state: &ClaimState) {
        locked(&self.registry).schedule(state.claim.id);
        self.wake();
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        let gone = locked(&self.registry).remove(id);
        drop(gone);
    }

    /// Keeps it until `at`, and releases it then. `lapsing`: the store is asked meanwhile to let it end by itself.
    pub(crate) fn release_at(&self, state: &Arc<ClaimState>, at: Moment, lapsing: bool) {
        self.keep(state);
        let mut registry = locked(&self.registry);
        if let Some(kept) = registry.kept.get_mut(&state.claim.id) {
            kept.release_at = Some(at);
            kept.lapsing = lapsing;
        }
        registry.schedule(state.claim.id);
    }

    /// One attempt to let a hold end at that moment without us.
    pub(crate) async fn ask_to_lapse(&self, state: &ClaimState, at: Moment) -> Result<()> {
        let (claim, place) = (state.now(), state.place());
        self.backend.release_after(&claim, place.as_ref(), at.since(self.clock.now())).await
    }

    /// The store lets it end by itself: nothing renews it any more.
    pub(crate) fn has_lapsed(&self, state: &ClaimState) {
        self.notifier.unlisten(state.claim.id);
        self.forget(state.claim.id);
        self.tell_if_quiet();
        events::lapses(&state.claim);
    }

    /// It is renewed as ever: the store does not let holds end by themselves.
    pub(crate) fn outlives_nothing(&self, state: &ClaimState) {
        let mut registry = locked(&self.registry);
        if let Some(kept) = registry.kept.get_mut(&state.claim.id) {
            kept.lapsing = false;
        }
        registry.schedule(state.claim.id);
        drop(registry);
        self.wake();
    }

    pub(crate) fn queue(&self, work: Work) {
        locked(&self.registry).queue(work);
    }

    /// Whoever runs the keeper looks what is to be done; whoever stands by looks if somebody runs it.
    pub(crate) fn wake(&self) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        let runner = registry.runner.clone();
        if runner.is_some() {
            registry.called.get_or_insert(now);
        }
        drop(registry);
        if let Some(runner) = runner {
            runner.notify_one();
        }
        self.standby.call();
    }

    /// The client goes, and what is left is still done.
    pub(crate) fn no_more_work(self: &Arc<Keeper>) {
        let mut registry = locked(&self.registry);
        registry.no_more_work = true;
        let left_alone = registry.runner.is_none() && !registry.is_drained();
        drop(registry);
        if left_alone {
            self.standby.hand_over(self);
        }
        self.quiet.notify_waiters();
        self.wake();
    }

    fn has_stopped(&self) -> bool {
        let registry = locked(&self.registry);
        registry.no_more_work && registry.is_drained()
    }

    /// Ends whatever is kept: holds are lost, whoever waits looks again, and all are withdrawn. A hold whose guard has gone and
    /// that is within its `min_hold` goes on, unless that is to end `too`.
    pub(crate) fn end_all(&self, min_hold_too: bool) {
        let mut registry = locked(&self.registry);
        let ends = |state: &Arc<ClaimState>| {
            min_hold_too || registry.kept.get(&state.claim.id).is_none_or(|kept| kept.release_at.is_none())
        };
        let ending: Vec<_> = registry.states().into_iter().filter(ends).collect();
        let gone: Vec<_> = ending.iter().map(|state| registry.remove(state.claim.id)).collect();
        drop(registry);
        for Kept { state, lapsing, .. } in gone.iter().flatten() {
            self.notifier.unlisten(state.claim.id);
            state.lose(Loss::Gone);
            // What the store may have let lapse ends when its min_hold does.
            if !lapsing {
                self.queue(Work::Withdraw(Release::of([state])));
            }
        }
    }

    /// Completes when nothing is kept and no background release is left.
    pub(crate) async fn drained(&self) {
        loop {
            let quiet = self.quiet.notified();
            if locked(&self.registry).is_drained() {
                return;
            }
            quiet.await;
        }
    }

    /// Completes when there is nothing to do any more, ever.
    pub(crate) async fn stopped(&self) {
        loop {
            let quiet = self.quiet.notified();
            if self.has_stopped() {
                return;
            }
            quiet.await;
        }
    }

    /// What is to be done now, and when to look again.
    fn plan(&self, room: usize) -> Plan {
        let now = self.clock.now();
        let early = locked(&self.random).f64() / 20.0;
        let most = self.backend.renew_batch();
        let mut registry = locked(&self.registry);
        let ended = registry.collect_due(now);
        let batches = registry.take_batches(now, early, most, room);
        for Ended { kept, loss } in &ended {
            // A hold that the store may have let lapse by now ends when its min_hold does, not before.
            if !kept.lapsing || *loss == Loss::Released {
                registry.queue(Work::Withdraw(Release::of([&kept.state])));
            }
        }
        registry.called = None;
        registry.next_wake = registry.agenda.first().map(|(at, _)| *at);
        registry.watching = registry.holds > 0;
        let plan = Plan {
            works: registry.take_work(),
            next: registry.next_wake,
            watching: registry.watching,
            early,
            // What is still kept when every guard has gone is within its min_hold.
            stop: registry.no_more_work && registry.is_drained(),
            batches,
        };
        drop(registry);
        for Ended { kept, loss } in ended {
            self.notifier.unlisten(kept.state.claim.id);
            if loss != Loss::Released {
                kept.state.lose(loss);
                events::lost(&kept.state.claim, loss);
            }
            kept.state.end_turns();
        }
        plan
    }

    /// What became of a flight; it comes back if it is still in the air.
    fn take_result(&self, result: BatchResult, early: f64) -> Option<RenewalBatch> {
        match result {
            BatchResult::Done(batch, answer) => self.answered(batch, answer, early),
            BatchResult::Late(batch) => {
                self.late(&batch);
                return Some(batch);
            }
        }
        None
    }

    /// Takes in what the store answered to a flight, however late: it counts from when it was sent.
    fn answered(&self, batch: RenewalBatch, answer: Result<Vec<Renewal>>, early: f64) {
        let RenewalBatch { items, sent, late, .. } = batch;
        let mut answers = match answer {
            Ok(all) => all.into_iter(),
            Err(e) => {
                if let Some(first) = items.first().filter(|_| !late) {
                    events::renewal_unknown(&first.state.claim, &e);
                }
                Vec::new().into_iter()
            }
        };
        let renewed: Vec<bool> = items.iter().map(|item| taken_in(item, answers.next(), sent)).collect();
        let now = self.clock.now();
        let mut slowest: Option<&BatchItem> = None;
        let mut registry = locked(&self.registry);
        registry.moved = Some(now);
        for (item, renewed) in items.iter().zip(renewed) {
            registry.answered(item.state.claim.id, sent, now, early, renewed);
            let slow = now.since(item.due_since) > item.state.ttl() / 3;
            if slow && slowest.is_none_or(|other| item.due_since < other.due_since) {
                slowest = Some(item);
            }
        }
        let slowest = slowest.filter(|item| registry.warns(now, item.state.ttl()));
        let holds = registry.holds;
        drop(registry);
        if let Some(BatchItem { state, due_since, .. }) = slowest {
            events::renewals_slow(&state.claim, holds, now.since(*due_since), state.ttl());
        }
    }

    /// The store has a new connection, so what was in flight on the old one may be late; or its server goes by other terms.
    fn renew_holds_now(&self) {
        locked(&self.registry).renew_holds_now(self.clock.now());
    }

    /// A flight is late: whatever is in it is asked for again soon.
    fn late(&self, batch: &RenewalBatch) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        batch.items.iter().for_each(|item| registry.overdue(item.state.claim.id, now));
        drop(registry);
        if let Some(first) = batch.items.first() {
            events::renewal_unknown(&first.state.claim, &batch::no_answer());
        }
    }

    fn finished(&self, work: u64) {
        let done = locked(&self.registry).finish(work);
        drop(done);
        self.tell_if_quiet();
    }

    /// Whoever waits for the end of the work looks again.
    fn tell_if_quiet(&self) {
        let quiet = locked(&self.registry).is_drained();
        if quiet {
            self.quiet.notify_waiters();
        }
    }
}

/// Takes in the answer about one, and says if it was renewed.
fn taken_in(BatchItem { state, lease, .. }: &BatchItem, answer: Option<Renewal>, sent: Moment) -> bool {
    match answer {
        Some(Renewal::Renewed(validity)) => state.extend(validity, sent),
        Some(Renewal::Granted(grant)) => state.grant(grant, sent),
        Some(Renewal::Lost(loss)) => state.lose_lease(lease.token, loss),
        Some(Renewal::Unknown(e)) => {
            events::renewal_unknown(&state.claim, &e);
            return false;
        }
        None => return false,
    }
    true
}

struct Plan {
    batches: Vec<Vec<BatchItem>>,
    works: Vec<(u64, Work)>,
    next: Option<Moment>,
    watching: bool,
    early: f64,
    stop: bool,
}

/// Does the work, until there is none or another runtime goes on with it.
async fn run(running: Running) {
    let keeper = &*running.keeper;
    let mut random = locked(&keeper.random).fork();
    let mut renew_now = keeper.notifier.renews_holds();
    let mut batches = FuturesUnordered::new();
    // How many of them are not late, how many these may be, and when that was last made less.
    let (mut under_way, mut width, mut narrowed) = (0, BATCHES, None);
    let mut works = FuturesUnordered::new();
    while !running.is_over() {
        let plan = keeper.plan(width - under_way.min(width));
        under_way += plan.batches.len();
        let begun = |items| RenewalBatch::new(&keeper.backend, &keeper.clock, items).answer(&keeper.clock);
        batches.extend(plan.batches.into_iter().map(begun));
        works.extend(plan.works.into_iter().map(|(id, work)| {
            let random = random.fork();
            async move {
                work.done(keeper, random).await;
                id
            }
        }));
        if plan.stop {
            return;
        }
        tokio::select! {
            () = running.wake.notified() => {}
            Ok(()) = renew_now.changed() => {
                width = BATCHES;
                keeper.renew_holds_now();
            }
            () = until(&keeper.clock, plan.next, plan.watching) => {}
            Some(result) = batches.next() => {
                match &result {
                    BatchResult::Done(batch, answer) => {
                        under_way -= usize::from(!batch.late);
                        width = BATCHES.min(width + usize::from(!batch.late || answer.is_ok()));
                    }
                    BatchResult::Late(batch) => {
                        under_way -= 1;
                        // Those that were in the air together are late together, by one cause.
                        if narrowed.is_none_or(|at| at <= batch.sent) {
                            (width, narrowed) = (1.max(width / 2), Some(keeper.clock.now()));
                        }
                    }
                }
                batches.extend(keeper.take_result(result, plan.early).map(|batch| batch.answer(&keeper.clock)));
            }
            Some(id) = works.next() => keeper.finished(id),
        }
    }
    // What is in flight here is still worth something.
    drop(works);
    while let Some(result) = batches.next().await {
        batches.extend(keeper.take_result(result, 0.0).map(|batch| batch.answer(&keeper.clock)));
    }
}

async fn until(clock: &Clock, at: Option<Moment>, watching: bool) {
    match at {
        Some(at) if watching => clock.sleep_until(at).await,
        Some(at) => clock.coarse_sleep_until(at).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
