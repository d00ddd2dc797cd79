//! In which runtime the keeper runs. Each runtime that uses the client has a task that stands by: when the keeper's runtime
//! ends, or is not driven any more, another goes on. It ends with its runtime, or with the client.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use super::{Keeper, run};
use crate::clock::Moment;
use crate::sync::locked;

/// How late the keeper may be for its own plan before another runtime goes on. A runtime that is merely busy gets that far
/// now and then: then two do the same for a moment, which harms nobody.
const STALL: Duration = Duration::from_millis(500);

/// Who stands by.
#[derive(Default)]
pub(super) struct Standby {
    /// Somebody should look if the keeper runs.
    called: Notify,
    present: Mutex<Present>,
}

#[derive(Default)]
struct Present {
    runtimes: HashSet<Id>,
    /// A keeper that lost its runtime with work left, and that nobody else may keep alive.
    orphan: Option<Arc<Keeper>>,
}

/// One runtime's presence.
struct Member {
    keeper: Weak<Keeper>,
    standby: Arc<Standby>,
    runtime: Id,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut present = locked(&self.standby.present);
        present.runtimes.remove(&self.runtime);
        let orphan = if present.runtimes.is_empty() { present.orphan.take() } else { None };
        drop(present);
        drop(orphan);
    }
}

impl Standby {
    /// Whoever stands by looks if the keeper runs.
    pub(super) fn call(&self) {
        self.called.notify_waiters();
    }

    /// Keeps it alive until another runtime goes on with its work, if there is another.
    pub(super) fn hand_over(&self, keeper: &Arc<Keeper>) {
        let mut present = locked(&self.present);
        let before = if present.runtimes.is_empty() { None } else { present.orphan.replace(keeper.clone()) };
        drop(present);
        drop(before);
        self.call();
    }

    fn found(&self) {
        let orphan = locked(&self.present).orphan.take();
        drop(orphan);
    }
}

impl Keeper {
    /// From now on this runtime goes on with the keeper's work when no other does.
    pub(crate) fn register_runtime(self: &Arc<Keeper>, runtime: &Handle) {
        let is_new = locked(&self.standby.present).runtimes.insert(runtime.id());
        if is_new {
            let (keeper, standby) = (Arc::downgrade(self), self.standby.clone());
            runtime.spawn(stand_by(Member { keeper, standby, runtime: runtime.id() }));
        }
    }
}

async fn stand_by(here: Member) {
    let standby = here.standby.clone();
    loop {
        let called = standby.called.notified();
        tokio::pin!(called);
        called.as_mut().enable();
        let Some(keeper) = here.keeper.upgrade() else { return };
        if let Some(running) = keeper.take_over(STALL) {
            standby.found();
            drop(keeper);
            run(running).await;
            continue;
        }
        if keeper.has_stopped() {
            standby.found();
            return;
        }
        let (clock, stalls) = (keeper.clock.clone(), keeper.stalls_at(STALL));
        drop(keeper);
        match stalls {
            Some(at) => tokio::select! {
                () = called => {}
                () = clock.coarse_sleep_until(at) => {}
            },
            None => called.await,
        }
    }
}

/// The keeper's task runs as long as this lives; a runtime that shuts down drops it.
pub(super) struct Running {
    pub(super) keeper: Arc<Keeper>,
    pub(super) wake: Arc<Notify>,
}

impl Running {
    /// Another runtime has gone on with the work.
    pub(super) fn is_over(&self) -> bool {
        !locked(&self.keeper.registry).is_run_by(&self.wake)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut registry = locked(&self.keeper.registry);
        let is_last = registry.is_run_by(&self.wake);
        if is_last {
            registry.orphaned();
        }
        registry.crashed(self.keeper.clock.now());
        let busy = is_last && !registry.is_drained();
        drop(registry);
        if busy {
            self.keeper.standby.hand_over(&self.keeper);
        }
    }
}

impl Keeper {
    /// The right to run here, if there is work and nobody does it.
    fn take_over(self: &Arc<Keeper>, stall: Duration) -> Option<Running> {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        let idle = registry.stalls_at(stall).is_none_or(|at| at > now);
        if registry.is_drained() || registry.runner.is_some() && idle {
            return None;
        }
        let wake = Arc::new(Notify::new());
        let before = registry.runner.replace(wake.clone());
        registry.begun_anew();
        drop(registry);
        if let Some(before) = before {
            before.notify_one();
        }
        Some(Running { keeper: self.clone(), wake })
    }

    fn stalls_at(&self, stall: Duration) -> Option<Moment> {
        locked(&self.registry).stalls_at(stall)
    }
}
