//! Work that a crowd wants done once: whoever comes while it is under way waits for the same.
//!
//! It runs in a task of its own, and goes on when whoever began it has left. But that task is one of somebody's runtime, which
//! may be driven no more: so nobody waits for work that was begun too long ago, and another begins it anew. What comes of the
//! earlier one after all must do no harm.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use leasehold_core::seam::{Moment, locked};
use tokio::time::timeout;

/// `None`: its runtime has ended.
type Flight<T> = Shared<BoxFuture<'static, Option<T>>>;

/// What is under way, and since when.
pub(crate) struct Flights<K, T>(Mutex<HashMap<K, (Moment, Flight<T>)>>);

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

/// It is under way as long as this lives.
struct UnderWay<K: Copy + Eq + Hash, T>(Arc<Flights<K, T>>, K, Moment);

impl<K: Copy + Eq + Hash, T> Drop for UnderWay<K, T> {
    fn drop(&mut self) {
        let UnderWay(flights, key, since) = self;
        let mut under_way = locked(&flights.0);
        let own = under_way.get(key).is_some_and(|(begun, _)| begun == since);
        let ended = if own { under_way.remove(key) } else { None };
        drop(under_way);
        drop(ended);
    }
}

impl<K: Copy + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> Flights<K, T> {
    /// What comes of the work that is under way for this key, or else of new work. Nobody waits for work that is older than
    /// `age`: it is begun anew, once. `None`: that was in vain too.
    pub(crate) async fn join<F>(self: &Arc<Self>, key: K, age: Duration, work: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        for _ in 0..2 {
            let (since, flight) = self.flight(key, age, &work);
            if let Ok(Some(outcome)) = timeout(age.saturating_sub(Moment::now().since(since)), flight).await {
                return Some(outcome);
            }
        }
        None
    }

    fn flight<F>(self: &Arc<Self>, key: K, age: Duration, work: impl Fn() -> F) -> (Moment, Flight<T>)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let now = Moment::now();
        let mut flights = locked(&self.0);
        let young = |(since, flight): &&(Moment, Flight<T>)| now.since(*since) < age && flight.peek().is_none();
        if let Some(flight) = flights.get(&key).filter(young) {
            return flight.clone();
        }
        let (all, work) = (self.clone(), work());
        let task = tokio::spawn(async move {
            // Not before it runs: a runtime that is ending drops it here, where the flights are locked.
            let _under_way = UnderWay(all, key, now);
            work.await
        });
        let new = (now, task.map(Result::ok).boxed().shared());
        let before = flights.insert(key, new.clone());
        drop(flights);
        drop(before);
        new
    }

    /// Waits until what is under way has ended, but not for longer than `limit`.
    pub(crate) async fn settle(&self, limit: Duration) {
        let flights: Vec<_> = locked(&self.0).values().map(|(_, flight)| flight.clone()).collect();
        drop(timeout(limit, join_all(flights)).await);
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
    fn begun_in(runtime: &Runtime) -> Arc<Flights<u64, u64>> {
        let flights = Arc::new(Flights::default());
        let of = flights.clone();
        runtime.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        runtime.block_on(async {
            while locked(&flights.0).is_empty() {
                yield_now().await;
            }
            // So that the work itself has begun.
            yield_now().await;
        });
        flights
    }

    #[test]
    fn work_in_a_runtime_that_is_not_driven_is_passed_by() {
        let (first, second) = (runtime(), runtime());
        let flights = begun_in(&first);
        let age = Duration::from_millis(50);
        assert_eq!(second.block_on(flights.join(1, age, || ready(2))), Some(2));
        assert!(locked(&flights.0).is_empty(), "what has ended is kept by nobody");
        let of = flights.clone();
        second.spawn(async move { of.join(1, LONG, pending::<u64>).await });
        second.block_on(yield_now());
        drop(first);
        assert_eq!(locked(&flights.0).len(), 1, "whoever was passed by ends no other's");
    }

    #[test]
    fn work_in_a_runtime_that_ends_is_begun_anew() {
        let (first, second) = (runtime(), runtime());
        let flights = begun_in(&first);
        let of = flights.clone();
        let waiter = second.spawn(async move { of.join(1, LONG, || ready(2)).await });
        second.block_on(yield_now());
        assert!(!waiter.is_finished(), "it waits for the work of the other");
        drop(first);
        assert_eq!(second.block_on(waiter).unwrap(), Some(2));
    }
}
