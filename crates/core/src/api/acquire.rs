//! The future of an acquisition.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::guard::Guard;
use crate::seam::error::Result;

/// An acquisition: resolves with the guard. It does nothing before it is first polled, owns all that it needs, and may be
/// spawned, selected and dropped anywhere.
///
/// Poll it or drop it: one that is kept and not polled, beside a `select!` that went another way, keeps its place in line,
/// and when its turn comes it keeps the lock from everybody else.
///
/// # Cancel safety
///
/// Drop it at any time. A request that is in flight then is let land, and whatever it took is given back in the
/// background; other waiters proceed, and nothing stays in the store longer than one lease.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire<G = Guard>(Pin<Box<dyn Future<Output = Result<G>> + Send>>);

impl<G> Acquire<G> {
    pub(crate) fn new(acquisition: impl Future<Output = Result<G>> + Send + 'static) -> Acquire<G> {
        Acquire(Box::pin(async move {
            // Whoever asks in a loop, and is refused each time without any request, lets others run.
            tokio::task::coop::consume_budget().await;
            acquisition.await
        }))
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
