//! The semaphore: a thin layer over claims that take permits.

use std::fmt;
use std::time::Duration;

use crate::api::acquire::Acquire;
use crate::api::lock::Lock;
use crate::api::options::options;
use crate::backend::claim::Mode;
use crate::backend::error::Result;
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;

/// A name that several clients may hold at once: as many as it has permits.
///
/// A guard owns its permits by a lease, so a crash gives them back after the TTL. The queue is in
/// order: a claim for many permits is not passed by later claims for few, so large claims do not
/// starve, and some permits may stay unused while a large claim waits.
///
/// All clients must use the same number of permits for a name. Two holders at the same time have
/// different tokens, and these do not exclude each other's writes.
///
/// Redlock has no semaphores: each acquire is [`Unsupported`](crate::ErrorKind::Unsupported) there.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let exports = store.semaphore("exports", 3);
/// let one = exports.acquire().await?;
/// let two = exports.permits(2).try_acquire().await?; // the other two
/// # drop((one, two)); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    pub(crate) lock: Lock,
    pub(crate) capacity: u32,
}

options!(Semaphore, .lock.options);

impl Semaphore {
    /// The name, as it was written: without the store's namespace.
    pub fn name(&self) -> &Name {
        self.lock.name()
    }

    /// A lock that takes `n` permits at once. It sends nothing.
    ///
    /// # Errors
    ///
    /// The acquire reports [`Invalid`](crate::ErrorKind::Invalid) if `n` is zero or more than the
    /// semaphore has, or if the claims in the queue have another total.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let memory = store.semaphore("gigabytes", 16);
    /// let large = memory.permits(8).acquire().await?; // later claims for one do not pass it
    /// # drop(large); Ok(()) }
    /// ```
    pub fn permits(&self, n: u32) -> Lock {
        self.lock.in_mode(Mode::Permits {
            n,
            of: self.capacity,
        })
    }

    /// Waits for one permit: see [`Lock::acquire`](crate::Lock::acquire) for the errors and for
    /// cancel safety.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let downloads = store.semaphore("downloads", 4); // at most four, on all machines together
    /// let permit = downloads.acquire().await?;
    /// println!("downloading");
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.permits(1).acquire()
    }

    /// Takes one permit now, or not at all: see [`Lock::try_acquire`](crate::Lock::try_acquire) for
    /// the errors and for cancel safety.
    pub fn try_acquire(&self) -> Acquire {
        self.permits(1).try_acquire()
    }

    /// Waits for one permit, at most for `wait`: see
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout) for the errors and for cancel
    /// safety.
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire {
        self.permits(1).acquire_timeout(wait)
    }

    /// Shows which clients hold permits and which wait for them. See
    /// [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.lock.inspect().await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock
            .debug_as("Semaphore", f)
            .field("permits", &self.capacity)
            .finish()
    }
}
