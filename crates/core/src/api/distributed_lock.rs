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
use crate::seam::error::Result;
use crate::seam::name::Name;

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
/// A mock that refuses, to test what becomes of a skipped job:
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::seam::async_trait;
/// use leasehold_core::{Contention, DistributedLock, Error, Guard, Name, Result};
///
/// #[derive(Debug)]
/// struct Held(Name);
///
/// #[async_trait]
/// impl DistributedLock for Held {
///     fn name(&self) -> &Name {
///         &self.0
///     }
///     async fn acquire(&self) -> Result<Guard> {
///         std::future::pending().await
///     }
///     async fn try_acquire(&self) -> Result<Guard> {
///         Err(Error::contended(Contention::by("web-1")).with_name(&self.0))
///     }
///     async fn acquire_timeout(&self, _wait: Duration) -> Result<Guard> {
///         Err(Error::timed_out(Contention::by("web-1")).with_name(&self.0))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let lock: &dyn DistributedLock = &Held("nightly".into());
/// let holder = lock.try_acquire().await.unwrap_err().into_contention().unwrap();
/// assert_eq!(holder.label.as_deref(), Some("web-1"));
/// # });
/// ```
///
/// A mock that grants forwards to a lock of the memory store, and loses its guard by
/// [`Store::evict`](crate::Store::evict).
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
