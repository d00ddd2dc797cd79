//! A lock behind a trait object: what libraries accept, and what decorators and mocks implement.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::guard::Guard;
use crate::api::held::Held;
use crate::api::lock::Lock;
use crate::seam::error::Result;
use crate::seam::name::Name;

/// What a library that needs a lock accepts, as `Arc<dyn DistributedLock>`: object-safe, the same for every store, open to
/// decorators and mocks. The futures are cancel-safe as [`Acquire`] is.
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
/// let who = lock.try_acquire().await.unwrap_err().into_contention().unwrap();
/// assert_eq!(who.label.as_deref(), Some("web-1"));
/// # });
/// ```
///
/// One that grants forwards to a lock of the memory store, and loses its guard by [`Store::evict`].
#[async_trait]
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

#[async_trait]
impl DistributedLock for Lock {
    fn name(&self) -> &Name {
        Lock::name(self)
    }
    async fn acquire(&self) -> Result<Guard> {
        Lock::acquire(self).await
    }
    async fn try_acquire(&self) -> Result<Guard> {
        Lock::try_acquire(self).await
    }
    async fn acquire_timeout(&self, wait: Duration) -> Result<Guard> {
        Lock::acquire_timeout(self, wait).await
    }
}

macro_rules! forward {
    ($pointer:ty) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: DistributedLock + ?Sized> DistributedLock for $pointer {
            fn name(&self) -> &Name {
                (**self).name()
            }
            async fn acquire(&self) -> Result<Guard> {
                (**self).acquire().await
            }
            async fn try_acquire(&self) -> Result<Guard> {
                (**self).try_acquire().await
            }
            async fn acquire_timeout(&self, wait: Duration) -> Result<Guard> {
                (**self).acquire_timeout(wait).await
            }
        }
    };
}

forward!(&L);
forward!(Box<L>);
forward!(Arc<L>);
