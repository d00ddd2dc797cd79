//! A lock behind a trait object: what libraries accept, and what decorators and mocks implement.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use auto_impl::auto_impl;

use crate::api::guard::Guard;
use crate::api::held::Held;
use crate::api::lock::Lock;
use crate::api::semaphore::Semaphore;
use crate::backend::error::Result;
use crate::backend::name::Name;

/// A lock behind a trait object, for libraries that need some lock: `Arc<dyn DistributedLock>`.
///
/// It is object-safe, is the same for every store, and can be implemented by decorators and mocks.
/// [`Lock`](crate::Lock) and [`Semaphore`](crate::Semaphore) implement it. Applications that know
/// their store use [`Lock`](crate::Lock), which has more options.
///
/// # Cancel safety
///
/// The futures can be dropped at any await, as those of [`Lock`](crate::Lock).
///
/// # Examples
///
/// A mock for the test of a job: the lock is free, or another client holds it.
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::backend::async_trait;
/// use leasehold_core::{Contention, DistributedLock, Error, FencingToken, Guard, Name, Result};
///
/// #[derive(Debug)]
/// struct Mock {
///     name: Name,
///     is_free: bool,
/// }
///
/// #[async_trait]
/// impl DistributedLock for Mock {
///     fn name(&self) -> &Name {
///         &self.name
///     }
///     async fn acquire(&self) -> Result<Guard> {
///         self.try_acquire().await
///     }
///     async fn try_acquire(&self) -> Result<Guard> {
///         if !self.is_free {
///             return Err(Error::contended(Contention::by("web-1")).with_name(&self.name));
///         }
///         let (guard, _hold) = Guard::for_tests(self.name.clone(), FencingToken::new(7));
///         Ok(guard)
///     }
///     async fn acquire_timeout(&self, _wait: Duration) -> Result<Guard> {
///         self.try_acquire().await
///     }
/// }
///
/// /// The job: it returns the token with which it has written, or `None` if it was skipped.
/// async fn nightly(lock: &dyn DistributedLock) -> Result<Option<FencingToken>> {
///     match lock.try_acquire().await {
///         Ok(guard) => guard.run(async |held| Some(held.fencing_token())).await,
///         Err(e) if e.is_contended() => Ok(None),
///         Err(e) => Err(e),
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let lock = |is_free| Mock { name: "nightly".into(), is_free };
/// assert_eq!(nightly(&lock(true)).await.unwrap(), Some(FencingToken::new(7)));
/// assert_eq!(nightly(&lock(false)).await.unwrap(), None);
/// # });
/// ```
///
/// [`Guard::for_tests`] also returns a [`TestHold`](crate::TestHold), with which the test ends the hold.
#[async_trait]
#[auto_impl(&, Box, Arc)]
pub trait DistributedLock: Send + Sync + Debug {
    /// The lock's name.
    fn name(&self) -> &Name;

    /// Waits until the lock is held: [`Lock::acquire`].
    async fn acquire(&self) -> Result<Guard>;

    /// Takes the lock now or not at all: [`Lock::try_acquire`].
    async fn try_acquire(&self) -> Result<Guard>;

    /// Waits at most `wait`: [`Lock::acquire_timeout`].
    async fn acquire_timeout(&self, wait: Duration) -> Result<Guard>;
}

impl dyn DistributedLock + '_ {
    /// Acquires, runs `body`, releases: see [`Guard::run`].
    pub async fn run<T, F: Future<Output = T>>(&self, body: impl FnOnce(Held) -> F) -> Result<T> {
        self.acquire().await?.run(body).await
    }
}

macro_rules! distributed_lock {
    ($lock:ident) => {
        #[async_trait]
        impl DistributedLock for $lock {
            fn name(&self) -> &Name {
                $lock::name(self)
            }
            async fn acquire(&self) -> Result<Guard> {
                $lock::acquire(self).await
            }
            async fn try_acquire(&self) -> Result<Guard> {
                $lock::try_acquire(self).await
            }
            async fn acquire_timeout(&self, wait: Duration) -> Result<Guard> {
                $lock::acquire_timeout(self, wait).await
            }
        }
    };
}

distributed_lock!(Lock);
distributed_lock!(Semaphore);
