//! The history that the processes of a world record, in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_chaos::{Event, What};
use leasehold_core::support::locked;
use tokio::time::sleep;

use crate::machine::now_nanos;
use crate::plan::MS;

/// The shortest interval, in nanoseconds, at which a waiter checks whether a release was told.
const HEARS: u64 = MS;

/// The history that all processes write, and the errors that no history may have.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<(Vec<Event>, Vec<String>)>>);

impl History {
    pub(crate) fn record(&self, t: u64, p: u64, what: What) {
        locked(&self.0).0.push(Event::new(t, p, what));
    }

    /// Records an error that no fault explains.
    pub(crate) fn unexpected(&self, what: String) {
        locked(&self.0).1.push(what);
    }

    /// Takes all events in the order of time, and the errors that no fault explains.
    pub(crate) fn take(&self) -> (Vec<Event>, Vec<String>) {
        let (mut events, unexpected) = std::mem::take(&mut *locked(&self.0));
        // Within an instant each process keeps its order.
        events.sort_by_key(|event| event.t);
        (events, unexpected)
    }
}

/// The access of one process to the history. A killed process writes nothing more.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) history: History,
    pub(crate) p: u64,
    pub(crate) killed: Arc<AtomicBool>,
}

impl Record {
    pub(crate) fn at(&self, t: u64, what: What) {
        if !self.killed.load(Ordering::Relaxed) {
            self.history.record(t, self.p, what);
        }
    }

    pub(crate) fn now(&self, what: What) {
        self.at(now_nanos(), what);
    }
}

/// The time of the last release of each lock. The user of a lock tells it to all who want that
/// lock.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Told {
    pub(crate) fn tell(&self, lock: &'static str) {
        locked(&self.0).insert(lock, now_nanos());
    }

    /// Waits until a release of this lock is told, at most for `longest`.
    pub(crate) async fn wait(&self, lock: &str, longest: Duration) {
        let begin = now_nanos();
        let end = begin + longest.as_nanos() as u64;
        loop {
            let now = now_nanos();
            // Another process may already be at a later time of this turn.
            let is_told = locked(&self.0)
                .get(lock)
                .is_some_and(|told| (begin..now).contains(told));
            if is_told || now >= end {
                return;
            }
            sleep(Duration::from_nanos(
                (end - now).min(HEARS.max(longest.as_nanos() as u64 / 100)),
            ))
            .await;
        }
    }
}

/// The resource that the locks protect. It refuses a token that is smaller than one that it has
/// seen.
#[derive(Clone)]
pub(crate) struct Resource {
    history: History,
    seen: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Resource {
    /// The number of its process in the history.
    const P: u64 = 1_000_000;

    pub(crate) fn new(history: History) -> Resource {
        Resource {
            history,
            seen: Arc::default(),
        }
    }

    pub(crate) fn write(&self, op: u64, lock: &'static str, tok: u64) -> bool {
        let mut seen = locked(&self.seen);
        let least = seen.entry(lock).or_default();
        let accepted = tok >= *least;
        *least = tok.max(*least);
        let name = lock.to_owned();
        let what = if accepted {
            What::Accept {
                op,
                lock: name,
                tok,
            }
        } else {
            What::Reject {
                op,
                lock: name,
                tok,
            }
        };
        self.history.record(now_nanos(), Resource::P, what);
        accepted
    }
}
