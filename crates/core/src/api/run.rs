//! A body that runs while a lock is held: acquire, run, release in one call.

use std::future::Future;

use crate::api::held::Held;
use crate::api::lock::Lock;
use crate::backend::contention::Contention;
use crate::backend::error::Result;

impl Lock {
    /// Acquires the lock, runs `body`, and releases it.
    ///
    /// If the lock is lost, `body` is dropped at its current await: see
    /// [`Guard::run`](crate::Guard::run). The future owns what it needs, so it can be spawned.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](crate::Lock::acquire); [`Lost`](crate::ErrorKind::Lost) if the
    /// lock was lost before `body` had ended. If `body` returns a `Result`, it is inside of this
    /// one: use `??`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `body` is dropped first, and then the lock is released in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = store.lock("orders/42");
    /// let sum = orders.run(async |held| -> Result<u64, std::num::ParseIntError> {
    ///     println!("token {}", held.fencing_token());
    ///     "42".parse()
    /// });
    /// println!("{}", sum.await??);
    /// # Ok(()) }
    /// ```
    pub fn run<T, F, B>(&self, body: B) -> impl Future<Output = Result<T>> + use<T, F, B>
    where
        B: FnOnce(Held) -> F,
        F: Future<Output = T>,
    {
        let acquire = self.acquire();
        async move { acquire.await?.run(body).await }
    }

    /// Runs `body` if the lock is free now, and says if it was skipped.
    ///
    /// For jobs that should run once, on whichever machine comes first.
    ///
    /// # Errors
    ///
    /// As [`run`](crate::Lock::run), but a lock that another client holds is no error: it is
    /// [`RunOutcome::Skipped`](crate::RunOutcome::Skipped).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](crate::Lock::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// use leasehold_core::RunOutcome;
    ///
    /// match store.lock("nightly").try_run(async |_| "report written").await? {
    ///     RunOutcome::Done(what) => println!("{what}"),
    ///     RunOutcome::Skipped(holder) => println!("not here: {holder}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_run<T, F, B>(
        &self,
        body: B,
    ) -> impl Future<Output = Result<RunOutcome<T>>> + use<T, F, B>
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

/// The outcome of [`Lock::try_run`](crate::Lock::try_run).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a skipped body is easily mistaken for one that ran"]
pub enum RunOutcome<T> {
    /// The body ran to its end, and returned this.
    Done(T),
    /// The body did not run: this client holds the lock.
    Skipped(Contention),
}
