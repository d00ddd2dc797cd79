//! The future of an acquisition.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::guard::Guard;
use crate::seam::error::Result;

/// An acquire under way: a future that resolves with the guard.
///
/// It does nothing before it is first polled. It owns all that it needs, so it can be spawned,
/// selected and dropped anywhere.
///
/// **Poll it or drop it.** A future that is kept and not polled, for example beside a `select!`
/// that took another branch, keeps its place in the queue. When the lock becomes free, that place
/// keeps it from all other clients until the future is polled or dropped.
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
    /// What is started begins with `consume_budget`: a loop of tries that are refused without any request lets other tasks run.
    /// To do it here would hold `acquisition` twice, which is most of what an acquire allocates.
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
