//! The keeper's task: it sends due requests and processes answers, until there is no work or
//! another runtime goes on.
//!
//! The task owns nothing that must survive it: no list of locks, no deadline. It asks the registry
//! for a plan, carries it out, and asks again. It can therefore be stopped at any await, and
//! another runtime continues with the next plan.

use std::future::pending;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::Keeper;
use super::batch::RenewalBatch;
use super::kept::{Batch, Kept};
use super::registry::{Ended, Planned};
use super::work::Work;
use crate::backend::clock::{Clock, Moment};
use crate::engine::events;
use crate::engine::release::Release;
use crate::support::sync::Notify;
use crate::support::{fault, locked};

/// The keeper's task runs as long as this lives; a runtime that shuts down drops it.
pub(super) struct Running {
    pub(super) keeper: Arc<Keeper>,
    pub(super) wake: Arc<Notify>,
}

impl Running {
    /// Returns whether another task has taken over the work.
    pub(super) fn is_over(&self) -> bool {
        !locked(&self.keeper.registry).is_run_by(&self.wake)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if fault("C1") && !self.is_over() {
            return;
        }
        let mut registry = locked(&self.keeper.registry);
        let is_last = registry.is_run_by(&self.wake);
        if is_last {
            registry.orphaned();
        }
        registry.crashed(self.keeper.clock.now());
        let busy = is_last && !registry.is_drained();
        let stopped = registry.has_stopped();
        drop(registry);
        if busy {
            self.keeper.standby.hand_over(&self.keeper);
        } else if stopped {
            // The tasks that stand by in other runtimes are woken, so that they end.
            self.keeper.standby.call();
        }
    }
}
struct Plan {
    batches: Vec<Batch>,
    works: Vec<(u64, Work)>,
    next: Option<Moment>,
    watching: bool,
    planned: Planned,
    stop: bool,
}

/// Does the work, until there is none or another runtime goes on with it.
pub(super) async fn run(running: Running) {
    let keeper = &*running.keeper;
    let mut random = locked(&keeper.random).fork();
    let mut renew_now = keeper.notifier.renews_holds();
    let mut batches = FuturesUnordered::new();
    // The number of batches that are not late.
    let mut under_way = 0;
    let mut works = FuturesUnordered::new();
    while !running.is_over() {
        let plan = keeper.plan(under_way);
        under_way += plan.batches.len();
        let begun = |batch| {
            RenewalBatch::new(&keeper.backend, &keeper.clock, batch, plan.planned)
                .answer(&keeper.clock)
        };
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
        // After each of these events the loop plans anew. In this order no branch keeps those below
        // it waiting for long, because the branches above only process notifications and answers to
        // planned requests.
        tokio::select! {
            biased;
            Ok(()) = renew_now.changed() => {
                // The store has a new connection, so requests in flight on the old one may be late;
                // or its server has changed its terms.
                locked(&keeper.registry).renew_holds_now(keeper.clock.now());
            }
            Some(result) = batches.next() => {
                let (batch, answer) = &result;
                // A batch that becomes late makes room for another one that overtakes it.
                under_way -= usize::from(answer.is_none() || !batch.late);
                let late = keeper.take_result(result, !batches.is_empty());
                batches.extend(late.map(|batch| batch.answer(&keeper.clock)));
            }
            Some(id) = works.next() => keeper.finished(id),
            () = until(&keeper.clock, plan.next, plan.watching) => {}
            () = running.wake.notified() => {}
        }
    }
    // Answers to requests in flight here still count; the task waits for them until it is needed
    // again.
    drop(works);
    let needed = keeper.needs_a_runner();
    tokio::pin!(needed);
    loop {
        tokio::select! {
            biased;
            result = batches.next() => match result {
                Some(result) => {
                    let late = keeper.take_result(result, !batches.is_empty());
                    batches.extend(late.map(|batch| batch.answer(&keeper.clock)));
                }
                None => return,
            },
            () = &mut needed => return,
        }
    }
}

async fn until(clock: &Clock, at: Option<Moment>, watching: bool) {
    match at {
        Some(at) if watching => clock.sleep_until(at).await,
        Some(at) => clock.coarse_sleep_until(at).await,
        None => pending().await,
    }
}

impl Keeper {
    /// Plans the work to do now, and the moment to plan again.
    fn plan(&self, under_way: usize) -> Plan {
        let now = self.clock.now();
        let early = locked(&self.random).f64() / 20.0;
        let most = self.backend.renew_batch();
        let mut registry = locked(&self.registry);
        let ended = registry.collect_due(now);
        let room = registry.width.room(under_way);
        let batches = registry.take_batches(now, early, most, room);
        for (kept, end) in &ended {
            // A hold that the store may have let lapse by now ends when its min_hold does, not before.
            if !kept.lapsing || *end == Ended::Released {
                registry
                    .works
                    .queue(Work::Withdraw(Release::of([&kept.state])));
            }
        }
        registry.plan_sleep(now);
        let plan = Plan {
            works: registry.works.take(),
            next: registry.next_wake,
            watching: registry.watching,
            planned: Planned { at: now, early },
            stop: registry.has_stopped(),
            batches,
        };
        drop(registry);
        for (Kept { state, .. }, end) in ended {
            self.notifier.unlisten(state.claim.id);
            match end {
                Ended::Lost(loss) => {
                    state.lose(loss);
                    state.tell_loss();
                }
                Ended::Untaken => {
                    events::given_back(&state.claim);
                    state.changed.notify_waiters();
                }
                Ended::Released => {}
            }
            state.end_turns();
        }
        plan
    }
}
