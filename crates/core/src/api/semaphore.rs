//! The semaphore: a view of claims that take permits.

use std::time::Duration;

use async_trait::async_trait;

use crate::api::acquire::Acquire;
use crate::api::distributed_lock::DistributedLock;
use crate::api::guard::Guard;
use crate::api::lock::Lock;
use crate::api::options::{Options, options};
use crate::api::scope::Scope;
use crate::seam::claim::Mode;
use crate::seam::error::Result;
use crate::seam::name::Name;
use crate::seam::queue::LockQueue;

/// A name that several may hold at once: as many permits as it was made with.
///
/// A guard owns its permits by a lease, so a crash gives them back. The line is in order: whoever asks for many is not
/// passed by those who ask for few. Everybody must say the same number of permits: a claim that says another one than those
/// in line is refused as [`Invalid`](crate::ErrorKind::Invalid). Tokens of holders at the same time do not fence one
/// another.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let exports = store.semaphore("exports", 3);
/// let one = exports.acquire().await?;
/// let two = exports.permits(2).try_acquire().await?;
/// # drop((one, two)); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    scope: Scope,
    name: Name,
    capacity: u32,
    options: Options,
}

options!(Semaphore, options);

impl Semaphore {
    pub(crate) fn new(scope: Scope, name: Name, capacity: u32) -> Semaphore {
        let options = scope.defaults.clone();
        Semaphore { scope, name, capacity, options }
    }

    /// The name, as it was written.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// So many permits at once. None, or more than there are, is reported by the acquire as
    /// [`Invalid`](crate::ErrorKind::Invalid).
    pub fn permits(&self, n: u32) -> Lock {
        let mode = Mode::Permits { n, of: self.capacity };
        Lock::new(self.scope.clone(), self.name.clone(), mode).with(&self.options)
    }

    /// Waits for one permit: [`Lock::acquire`].
    pub fn acquire(&self) -> Acquire {
        self.permits(1).acquire()
    }

    /// Takes one permit now or not at all: [`Lock::try_acquire`].
    pub fn try_acquire(&self) -> Acquire {
        self.permits(1).try_acquire()
    }

    /// Waits for one permit, at most `wait`: [`Lock::acquire_timeout`].
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire {
        self.permits(1).acquire_timeout(wait)
    }

    /// Who holds permits and who waits for them.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.scope.inspect(&self.name).await
    }
}

#[async_trait]
impl DistributedLock for Semaphore {
    fn name(&self) -> &Name {
        Semaphore::name(self)
    }
    async fn acquire(&self) -> Result<Guard> {
        Semaphore::acquire(self).await
    }
    async fn try_acquire(&self) -> Result<Guard> {
        Semaphore::try_acquire(self).await
    }
    async fn acquire_timeout(&self, wait: Duration) -> Result<Guard> {
        Semaphore::acquire_timeout(self, wait).await
    }
}
