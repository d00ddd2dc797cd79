//! Work that many tasks want done is done once: those that come while it is under way wait for the same.
//!
//! It runs in a task of its own, and goes on when the task that began it has left. But it runs in the runtime of that task, which
//! may be driven no more: so nothing waits for work that was begun too long ago, and it is begun anew. What comes of the earlier
//! work after all must do no harm.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use leasehold_core::seam::Moment;
use leasehold_core::support::locked;
use scopeguard::guard;
use tokio::time::timeout;

/// What comes of work; `None`: its runtime has ended.
pub(crate) type Outcome<T> = Shared<BoxFuture<'static, Option<T>>>;

/// What is under way, and since when.
pub(crate) struct SingleFlight<K, T>(Mutex<HashMap<K, (Moment, Outcome<T>)>>);

impl<K, T> Default for SingleFlight<K, T> {
    fn default() -> Self {
        SingleFlight(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> SingleFlight<K, T> {
    /// What comes of the work that is under way for this key, or else of new work. Work that is older than `age` is waited for
    /// no more: it is begun anew, once. `None`: that was in vain too.
    pub(crate) async fn join<F>(self: &Arc<Self>, key: K, age: Duration, work: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        for _ in 0..2 {
            let (since, outcome) = self.begin(key, age, &work);
            if let Ok(Some(outcome)) = timeout(age.saturating_sub(Moment::now().since(since)), outcome).await {
                return Some(outcome);
            }
        }
        None
    }

    /// The work that is under way for this key and younger than `age`, or else new work: when it was begun, and its outcome.
    pub(crate) fn begin<F>(self: &Arc<Self>, key: K, age: Duration, work: impl Fn() -> F) -> (Moment, Outcome<T>)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let now = Moment::now();
        let mut under_way = locked(&self.0);
        let young = |(since, outcome): &&(Moment, Outcome<T>)| now.since(*since) < age && outcome.peek().is_none();
        if let Some(known) = under_way.get(&key).filter(young) {
            return known.clone();
        }
        let (all, work) = (self.clone(), work());
        let task = tokio::spawn(async move {
            // Not before it runs: a runtime that is ending drops it here, where the map is locked.
            let _under_way = guard(all, move |all| all.forget(key, now));
            work.await
        });
        let new = (now, task.map(Result::ok).boxed().shared());
        let before = under_way.insert(key, new.clone());
        drop(under_way);
        drop(before);
        new
    }

    /// The work that was begun then is no longer under way.
    fn forget(&self, key: K, since: Moment) {
        let mut under_way = locked(&self.0);
        let own = under_way.get(&key).is_some_and(|(begun, _)| *begun == since);
        let ended = if own { under_way.remove(&key) } else { None };
        drop(under_way);
        drop(ended);
    }

    /// Waits until what is under way has ended, but not for longer than `limit`.
    pub(crate) async fn settle(&self, limit: Duration) {
        let all: Vec<_> = locked(&self.0).values().map(|(_, outcome)| outcome.clone()).collect();
        drop(timeout(limit, join_all(all)).await);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Work that never ends is under way in this runtime.
    fn begun_in(runtime: &Runtime) -> Arc<SingleFlight<u64, u64>> {
        let all = Arc::new(SingleFlight::default());
        let of = all.clone();
        runtime.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        runtime.block_on(async {
            while locked(&all.0).is_empty() {
                yield_now().await;
            }
            // So that the work itself has begun.
            yield_now().await;
        });
        all
    }

    #[test]
    fn work_in_a_runtime_that_is_not_driven_is_passed_by() {
        let (first, second) = (runtime(), runtime());
        let all = begun_in(&first);
        let age = Duration::from_millis(50);
        assert_eq!(second.block_on(all.join(1, age, || ready(2))), Some(2));
        assert!(locked(&all.0).is_empty(), "what has ended is not kept");
        let of = all.clone();
        second.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        second.block_on(yield_now());
        drop(first);
        assert_eq!(locked(&all.0).len(), 1, "work that was passed by ends no other");
    }

    #[test]
    fn work_in_a_runtime_that_ends_is_begun_anew() {
        let (first, second) = (runtime(), runtime());
        let all = begun_in(&first);
        let of = all.clone();
        let waiter = second.spawn(async move { of.join(1, LONG, || ready(2)).await });
        second.block_on(yield_now());
        assert!(!waiter.is_finished(), "it waits for the work of the other");
        drop(first);
        assert_eq!(second.block_on(waiter).unwrap(), Some(2));
    }
}
