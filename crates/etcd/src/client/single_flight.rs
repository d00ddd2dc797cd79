//! Runs work once that many tasks want done: tasks that come while it is under way wait for its
//! result.
//!
//! The work runs in a task of its own, and goes on when the task that began it has left. But it
//! runs in the runtime of that task, which may end, or not be driven any more. Then, and if it was
//! begun too long ago, no task waits for it, and the work is begun anew. The earlier work must do no
//! harm if it still completes.

use std::collections::HashMap;
use std::future::{pending, ready};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use leasehold_core::backend::Moment;
use leasehold_core::support::{Home, locked};
use scopeguard::guard;
use tokio::time::timeout;

/// The result of work; `None`: its runtime has ended.
pub(crate) type Outcome<T> = Shared<BoxFuture<'static, Option<T>>>;

/// The work that is under way.
pub(crate) struct SingleFlight<K, T>(Mutex<HashMap<K, Flight<T>>>);

/// Work that is under way: the time at which it was begun, its outcome, and the runtime that does it.
#[derive(Clone)]
pub(crate) struct Flight<T> {
    since: Moment,
    outcome: Outcome<T>,
    home: Option<Home>,
}

impl<T: Clone> Flight<T> {
    /// Its outcome. `None`: its runtime has ended, or is not driven any more.
    pub(crate) async fn land(&self) -> Option<T> {
        let left = async {
            match &self.home {
                Some(home) => home.left().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = self.outcome.clone() => outcome,
            () = left => None,
        }
    }
}

impl<K, T> Default for SingleFlight<K, T> {
    fn default() -> Self {
        SingleFlight(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> SingleFlight<K, T> {
    /// Returns the result of the work that is under way for this key, or else of new work. Work
    /// that is older than `age` is not waited for: it is begun anew, once. `None`: that had no
    /// result either.
    pub(crate) async fn join<F>(
        self: &Arc<Self>,
        key: K,
        age: Duration,
        work: impl Fn() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        for _ in 0..2 {
            let flight = self.begin(key, age, &work);
            let left = age.saturating_sub(Moment::now().since(flight.since));
            if let Ok(Some(outcome)) = timeout(left, flight.land()).await {
                return Some(outcome);
            }
            self.forget(key, &flight);
        }
        None
    }

    /// Returns the work that is under way for this key and younger than `age`, or else new work.
    pub(crate) fn begin<F>(
        self: &Arc<Self>,
        key: K,
        age: Duration,
        work: impl Fn() -> F,
    ) -> Flight<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let now = Moment::now();
        let mut under_way = locked(&self.0);
        let young =
            |flight: &&Flight<T>| now.since(flight.since) < age && flight.outcome.peek().is_none();
        if let Some(known) = under_way.get(&key).filter(young) {
            return known.clone();
        }
        let all = self.clone();
        let work = work();
        let work = async move {
            // Only created once the task runs: a runtime that is ending drops the task here, where
            // the map is locked.
            let _under_way = guard(all, move |all| all.remove(key, now));
            work.await
        };
        let (home, task) = match Home::of(work.boxed()) {
            Some((home, work)) => (Some(home), tokio::spawn(work).map(Result::ok).boxed()),
            None => (None, ready(None).boxed()),
        };
        let new = Flight {
            since: now,
            outcome: task.shared(),
            home,
        };
        let before = under_way.insert(key, new.clone());
        drop(under_way);
        drop(before);
        new
    }

    /// Does not let others wait for this work, whose runtime is not driven.
    pub(crate) fn forget(&self, key: K, flight: &Flight<T>) {
        self.remove(key, flight.since);
    }

    /// Removes the work that was begun at `since`.
    fn remove(&self, key: K, since: Moment) {
        let mut under_way = locked(&self.0);
        let own = under_way
            .get(&key)
            .is_some_and(|flight| flight.since == since);
        let ended = if own { under_way.remove(&key) } else { None };
        drop(under_way);
        drop(ended);
    }

    /// Waits until the work that is under way has ended, but not for longer than `limit`.
    pub(crate) async fn settle(&self, limit: Duration) {
        let all: Vec<_> = locked(&self.0)
            .values()
            .map(|flight| flight.outcome.clone())
            .collect();
        drop(timeout(limit, join_all(all)).await);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Begins work in this runtime that never ends.
    fn begun_in(runtime: &Runtime) -> Arc<SingleFlight<u64, u64>> {
        let all = Arc::new(SingleFlight::default());
        let of = all.clone();
        runtime.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        runtime.block_on(async {
            while locked(&all.0).is_empty() {
                yield_now().await;
            }
            // The work itself has begun after this.
            yield_now().await;
        });
        all
    }

    #[test]
    fn work_in_a_runtime_that_is_not_driven_is_passed_by() {
        let first = runtime();
        let second = runtime();
        let all = begun_in(&first);
        let age = Duration::from_millis(50);
        assert_eq!(second.block_on(all.join(1, age, || ready(2))), Some(2));
        assert!(locked(&all.0).is_empty(), "what has ended is not kept");
        let of = all.clone();
        second.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        second.block_on(yield_now());
        drop(first);
        assert_eq!(
            locked(&all.0).len(),
            1,
            "work that was passed by ends no other"
        );
    }

    #[test]
    fn work_in_a_runtime_that_ends_is_begun_anew() {
        let first = runtime();
        let second = runtime();
        let all = begun_in(&first);
        let of = all.clone();
        let waiter = second.spawn(async move { of.join(1, LONG, || ready(2)).await });
        second.block_on(yield_now());
        assert!(!waiter.is_finished(), "it waits for the work of the other");
        drop(first);
        assert_eq!(second.block_on(waiter).unwrap(), Some(2));
    }
}
