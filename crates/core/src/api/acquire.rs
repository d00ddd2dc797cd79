//! The future of an acquisition.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::guard::Guard;
use crate::backend::error::Result;

/// An acquire under way: a future that resolves with the guard.
///
/// It does nothing before it is first polled. It owns all that it needs, so it can be spawned,
/// selected and dropped anywhere.
///
/// **Poll it or drop it.** A future that is kept and not polled, for example beside a `select!`
/// that took another branch, keeps its place in the queue. When the lock becomes free, it keeps it
/// from all other clients until it is polled or dropped, but for no longer than about one TTL, or
/// [`max_hold`](crate::Options::max_hold), or soon after its own deadline. Then the lock is given
/// back, with an event of level `WARN`. If the future is polled after that, it waits anew, at the end
/// of the queue, or has [timed out](crate::ErrorKind::TimedOut).
///
/// # Cancel safety
///
/// Drop it at any time. A request that is in flight is completed in the background, and what it
/// took is released. Other waiters proceed, and nothing stays in the store for longer than one TTL.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let lock = store.lock("orders/42");
/// let guard = tokio::select! {
///     guard = lock.acquire() => guard?,
///     () = shutdown() => return Ok(()), // the acquire is dropped, and leaves the queue
/// };
/// guard.release().await
/// # }
/// # async fn shutdown() {}
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire<G = Guard>(Pin<Box<dyn Future<Output = Result<G>> + Send>>);

impl<G> Acquire<G> {
    /// Boxes the future of an acquisition. Each caller's future begins with `consume_budget`, so
    /// that a loop of tries that are refused without any request lets other tasks run. An async
    /// wrapper here would hold `acquisition` twice, and it is most of what an acquire allocates.
    pub(crate) fn new(acquisition: impl Future<Output = Result<G>> + Send + 'static) -> Acquire<G> {
        Acquire(Box::pin(acquisition))
    }
}

impl<G> Future for Acquire<G> {
    type Output = Result<G>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<G>> {
        self.0.as_mut().poll(cx)
    }
}

impl<G> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquire")
    }
}
