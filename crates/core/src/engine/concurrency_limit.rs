//! The limit on the claims of one client that are in flight at once. Further tasks wait here, and
//! not in the store's connection, where they would delay renewals and releases.
//!
//! A store has one connection per client. If ten thousand tasks send their claims at once, renewals
//! and releases wait behind them, and locks are lost because other tasks want locks. Therefore only
//! a limited number of claims is under way; the others wait here, in their order, which costs
//! nothing.
//!
//! The limit opens when nothing comes back for a second. A task that has sent its claim need not
//! poll its future: it may wait in a `select!` for something else, and its slot stays taken. A
//! fixed limit would then stop all others.
//!
//! A deadline that ends here is [`TimedOut`](ErrorKind::TimedOut) if the store has answered others
//! meanwhile, and [`Unavailable`](ErrorKind::Unavailable) if it has not: the first is load, the
//! second an outage, and callers treat them differently.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::backend::clock::{Clock, Moment};
use crate::backend::contention::Contention;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::support::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of claims at once. With 100 ms to the store and back this allows 1,280 claims a
/// second.
const WIDTH: usize = 128;
/// The time without progress after which as many claims again may go out: a task that has sent a
/// request need not poll it.
const STALL: Duration = Duration::from_secs(1);

/// First come, first served.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    clock: Clock,
    permits: Semaphore,
    /// The moment when a slot was last taken, or given back while others may have waited, in
    /// nanoseconds.
    moved: AtomicU64,
    /// The moment when the store last answered a claim, in nanoseconds.
    answered: AtomicU64,
    /// The number of slots that were added beyond the width.
    beyond: AtomicUsize,
}

/// The right to have a claim under way.
#[derive(Debug)]
pub(crate) struct Slot(Arc<ConcurrencyLimit>);

impl ConcurrencyLimit {
    pub(crate) fn new(clock: Clock) -> Arc<ConcurrencyLimit> {
        let permits = Semaphore::new(WIDTH);
        Arc::new(ConcurrencyLimit {
            clock,
            permits,
            moved: 0.into(),
            answered: 0.into(),
            beyond: 0.into(),
        })
    }

    /// Returns a slot if one is free now.
    pub(crate) fn try_enter(self: &Arc<ConcurrencyLimit>, now: Moment) -> Option<Slot> {
        self.permits
            .try_acquire()
            .ok()
            .map(|permit| self.slot(permit, now))
    }

    /// Waits for a slot, until `deadline`, and for `retry_budget` while the store answers no claim. Cancel-safe.
    pub(crate) async fn enter(
        self: &Arc<ConcurrencyLimit>,
        deadline: Option<Moment>,
        retry_budget: Duration,
    ) -> Result<Slot> {
        let began = self.clock.now();
        let turn = self.permits.acquire();
        tokio::pin!(turn);
        loop {
            let heard = Moment::from_nanos(self.answered.load(Ordering::Relaxed)).max(began);
            let gives_up = heard + retry_budget;
            let ends = deadline.map_or(gives_up, |at| at.min(gives_up));
            let now = self.clock.now();
            if ends <= now && heard > began && now < gives_up {
                // The store answers, so other tasks of this client were served first.
                return Err(Error::timed_out(Contention::by(
                    "other tasks of this process",
                )));
            } else if ends <= now {
                let text = "not sent: the store has not answered the claims of this client that were before it";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            self.widen(now);
            let stalls = Moment::from_nanos(self.moved.load(Ordering::Relaxed)) + STALL;
            tokio::select! {
                biased;
                permit = &mut turn => {
                    return permit.map(|permit| self.slot(permit, self.clock.now())).map_err(|_| Error::closed());
                }
                () = self.clock.coarse_sleep_until(stalls.min(ends)) => {}
            }
        }
    }

    /// The store has answered a claim.
    pub(crate) fn answered(&self, now: Moment) {
        self.answered.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// Tasks that wait here are refused from now on.
    pub(crate) fn close(&self) {
        self.permits.close();
    }

    fn slot(self: &Arc<ConcurrencyLimit>, permit: SemaphorePermit<'_>, now: Moment) -> Slot {
        // The slot gives the permit back itself, because it may outlive this call.
        permit.forget();
        self.moved.fetch_max(now.as_nanos(), Ordering::Relaxed);
        Slot(self.clone())
    }

    /// Adds slots if no slot was taken or given back for a second; one of the waiting tasks does it
    /// for all.
    fn widen(&self, now: Moment) {
        let moved = self.moved.load(Ordering::Relaxed);
        let stalled = now.since(Moment::from_nanos(moved)) >= STALL;
        let swap = |to| {
            self.moved
                .compare_exchange(moved, to, Ordering::Relaxed, Ordering::Relaxed)
        };
        if stalled && swap(now.as_nanos()).is_ok() {
            self.beyond.fetch_add(WIDTH, Ordering::Relaxed);
            self.permits.add_permits(WIDTH);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let ConcurrencyLimit {
            clock,
            permits,
            moved,
            beyond,
            ..
        } = &*self.0;
        if permits.available_permits() == 0 {
            moved.fetch_max(clock.now().as_nanos(), Ordering::Relaxed);
        }
        let narrows = beyond
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok();
        if !narrows {
            permits.add_permits(1);
        }
    }
}
