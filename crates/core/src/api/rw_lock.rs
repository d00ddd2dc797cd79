//! The lock of readers and writers: a thin layer over claims with the mode `Shared` or `Exclusive` on one queue.

use std::fmt;

use crate::api::lock::Lock;
use crate::api::options::options;
use crate::api::owner::Owner;
use crate::backend::claim::Mode;
use crate::backend::error::Result;
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;

/// A name that many readers may hold together, or one writer alone.
///
/// Readers and writers share one queue, in its order: a reader waits behind a writer that came
/// first, so neither starves. The queue is the name's own: [`Store::lock`](crate::Store::lock) of
/// the same name is one more writer. A writer becomes a reader by
/// [`Guard::downgrade`](crate::Guard::downgrade). A reader never becomes a writer.
///
/// The fencing tokens of readers that hold at the same time differ, and do not exclude each other's
/// writes. A later writer has a greater token than all of them.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let catalog = store.rw_lock("catalog");
/// let reading = catalog.read().acquire().await?;
/// reading.release().await?;
/// let writing = catalog.write().acquire().await?;
/// writing.downgrade().await?; // readers are admitted; no writer was in between
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until one of its sides is acquired"]
pub struct RwLock(pub(crate) Lock);

options!(RwLock, .0.options);

impl RwLock {
    /// Makes both sides re-entrant for this owner, as [`Lock::owner`](crate::Lock::owner) does: an
    /// owner that writes may also read.
    ///
    /// # Errors
    ///
    /// An owner that reads and asks to write gets [`Invalid`](crate::ErrorKind::Invalid) instead of
    /// waiting for itself.
    pub fn owner(self, owner: &Owner) -> RwLock {
        RwLock(self.0.owner(owner))
    }

    /// The name, as it was written: without the store's namespace.
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// The shared side: many clients may hold it together. It sends nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let catalog = store.rw_lock("catalog");
    /// let (one, two) = (catalog.read().acquire().await?, catalog.read().acquire().await?); // together
    /// assert!(catalog.write().try_acquire().await.is_err());
    /// # drop((one, two)); Ok(()) }
    /// ```
    pub fn read(&self) -> Lock {
        self.0.in_mode(Mode::Shared)
    }

    /// The exclusive side: one client may hold it. It sends nothing.
    ///
    /// The fencing token of a writer is greater than those of all readers and writers before it.
    /// Let the resource compare it with the writers' tokens only: readers do not write.
    pub fn write(&self) -> Lock {
        self.0.in_mode(Mode::Exclusive)
    }

    /// Shows which clients hold the lock and which wait, each with its mode. See
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
        self.0.inspect().await
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug_as("RwLock", f).finish()
    }
}
