//! The takeover of the keeper by another runtime. Each runtime that uses the client has a task that
//! stands by: when the keeper's runtime ends, or is not driven any more, another one goes on. The
//! task ends with its runtime, or with the client.
//!
//! A runtime can also stop without ending: a blocked one does not drive its tasks. Nothing notifies
//! the others of it. The keeper therefore records when it will plan again, and the tasks that stand
//! by compare that with the clock.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use super::Keeper;
use super::registry::Registry;
use super::standby::Standby;
use super::task::{Running, run};
use crate::backend::clock::{Clock, Moment};
use crate::support::sync::{Notify, spawn};
use crate::support::{fault, locked};

/// The delay of the keeper behind its own plan after which another runtime goes on. A runtime that
/// is merely busy is sometimes that late: then two do the same work for a moment, which does no
/// harm.
pub(super) const STALL: Duration = Duration::from_millis(500);

/// One runtime's presence.
struct Member {
    keeper: Weak<Keeper>,
    standby: Arc<Standby<Keeper>>,
    runtime: Id,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.standby.leave(self.runtime);
    }
}

impl Keeper {
    /// Makes this runtime go on with the keeper's work from now on when no other does.
    pub(crate) fn register_runtime(self: &Arc<Keeper>, runtime: &Handle) {
        if self.standby.come(runtime.id()) {
            let keeper = Arc::downgrade(self);
            let standby = self.standby.clone();
            spawn(
                runtime,
                stand_by(Member {
                    keeper,
                    standby,
                    runtime: runtime.id(),
                }),
            );
        }
    }
}

async fn stand_by(here: Member) {
    let standby = here.standby.clone();
    loop {
        let called = standby.called.notified();
        let Some(keeper) = here.keeper.upgrade() else {
            return;
        };
        if let Some(running) = keeper.take_over() {
            standby.found();
            drop(keeper);
            run(running).await;
            continue;
        }
        if locked(&keeper.registry).has_stopped() {
            standby.found();
            return;
        }
        let clock = keeper.clock.clone();
        let stalls = locked(&keeper.registry).stalls_at(STALL);
        drop(keeper);
        called_or_late(called, &clock, stalls).await;
    }
}

/// Completes when a task that stands by must look: it was called, or the running task is late for
/// its plan.
async fn called_or_late(called: impl Future<Output = ()>, clock: &Clock, late: Option<Moment>) {
    match late {
        Some(at) => tokio::select! {
            biased;
            () = called => {}
            () = clock.coarse_sleep_until(at) => {}
        },
        None => called.await,
    }
}

impl Registry {
    pub(super) fn is_run_by(&self, task: &Arc<Notify>) -> bool {
        self.runner
            .as_ref()
            .is_some_and(|runner| Arc::ptr_eq(runner, task))
    }

    /// Returns whether a task runs that is not late for its plan by more than `stall`.
    pub(super) fn is_run(&self, now: Moment, stall: Duration) -> bool {
        self.runner.is_some() && (fault("C1") || self.stalls_at(stall).is_none_or(|at| at > now))
    }

    /// The moment from which on the running task is late for its plan by more than `stall`.
    pub(super) fn stalls_at(&self, stall: Duration) -> Option<Moment> {
        let first = [self.next_wake, self.called].into_iter().flatten().min();
        first.filter(|_| self.runner.is_some()).map(|at| at + stall)
    }
}

impl Keeper {
    /// Completes when no task runs, or the one that should run stands still.
    pub(super) async fn needs_a_runner(&self) {
        loop {
            let called = self.standby.called.notified();
            if !locked(&self.registry).is_run(self.clock.now(), STALL) {
                return;
            }
            let stalls = locked(&self.registry).stalls_at(STALL);
            called_or_late(called, &self.clock, stalls).await;
        }
    }
}

impl Keeper {
    /// Returns the right to run here, if there is work and no task does it, or if the task that
    /// should run stands still.
    pub(super) fn take_over(self: &Arc<Keeper>) -> Option<Running> {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        if registry.is_run(now, STALL) {
            return None;
        }
        // A task that stands still is replaced even if there is nothing to do: its plan is overdue,
        // and a task that stands by would compare that with the clock again and again.
        if (registry.runner.is_none() || fault("idle-runner")) && registry.is_idle() {
            // This task has looked, so the next claim wakes it again.
            registry.called = None;
            return None;
        }
        let wake = Arc::new(Notify::new());
        let before = registry.runner.replace(wake.clone());
        registry.begun_anew();
        drop(registry);
        if let Some(before) = before {
            before.notify_one();
        }
        Some(Running {
            keeper: self.clone(),
            wake,
        })
    }
}
