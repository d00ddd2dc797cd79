//! A body that runs while a lock is held: acquire, run, release in one call.

use std::future::Future;

use crate::api::held::Held;
use crate::api::lock::Lock;
use crate::seam::contention::Contention;
use crate::seam::error::Result;

impl Lock {
    /// Acquires, runs `body`, releases: see [`Guard::run`] for what happens on loss and cancellation.
    ///
    /// A body that can fail reads `.run(…).await??`; annotate it as `async |held| -> anyhow::Result<_> { … }`.
    pub fn run<T, F, B>(&self, body: B) -> impl Future<Output = Result<T>> + use<T, F, B>
    where
        B: FnOnce(Held) -> F,
        F: Future<Output = T>,
    {
        let acquire = self.acquire();
        async move { acquire.await?.run(body).await }
    }

    /// Runs `body` if the lock is free now, and says if it was skipped.
    pub fn try_run<T, F, B>(&self, body: B) -> impl Future<Output = Result<RunOutcome<T>>> + use<T, F, B>
    where
        B: FnOnce(Held) -> F,
        F: Future<Output = T>,
    {
        let acquire = self.try_acquire();
        async move {
            match acquire.await {
                Ok(guard) => guard.run(body).await.map(RunOutcome::Done),
                Err(e) => e.into_contention().map(RunOutcome::Skipped),
            }
        }
    }
}

/// Whether a body ran.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a skipped body is easily mistaken for one that ran"]
pub enum RunOutcome<T> {
    /// It ran, and returned this.
    Done(T),
    /// Somebody else holds the lock.
    Skipped(Contention),
}
