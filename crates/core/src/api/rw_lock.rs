//! The lock of readers and writers: a view of two claims on one line.

use crate::api::lock::Lock;
use crate::api::options::{Options, options};
use crate::api::owner::Owner;
use crate::api::scope::Scope;
use crate::seam::claim::Mode;
use crate::seam::error::Result;
use crate::seam::name::Name;
use crate::seam::queue::LockQueue;

/// A name that many may hold as readers, or one as its writer.
///
/// Readers and writers stand in one line, in its order: a reader waits behind a writer who came first, so neither starves.
/// The line is the name's own: `lock` of the same name is one more writer. A writer becomes a reader by
/// [`Guard::downgrade`](crate::Guard::downgrade); a reader never becomes a writer.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let catalog = store.rw_lock("catalog");
/// let reading = catalog.read().acquire().await?;
/// reading.release().await?;
/// let writing = catalog.write().acquire().await?;
/// writing.downgrade().await?; // readers get in, no writer was in between
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until one of its sides is acquired"]
pub struct RwLock {
    scope: Scope,
    name: Name,
    options: Options,
    owner: Option<Owner>,
}

options!(RwLock, options);

impl RwLock {
    pub(crate) fn new(scope: Scope, name: Name) -> RwLock {
        let options = scope.defaults.clone();
        RwLock { scope, name, options, owner: None }
    }

    /// Re-entry on both sides, as [`Lock::owner`] says: an owner who writes may also read. One who reads and asks to write
    /// gets [`Invalid`](crate::ErrorKind::Invalid) instead of waiting for itself.
    pub fn owner(mut self, owner: &Owner) -> RwLock {
        self.owner = Some(owner.clone());
        self
    }

    /// The name, as it was written.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The side that many may hold.
    pub fn read(&self) -> Lock {
        self.side(Mode::Shared)
    }

    /// The side that one may hold.
    pub fn write(&self) -> Lock {
        self.side(Mode::Exclusive)
    }

    /// Who holds it and who waits.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.scope.inspect(&self.name).await
    }

    fn side(&self, mode: Mode) -> Lock {
        let lock = Lock::new(self.scope.clone(), self.name.clone(), mode).with(&self.options);
        self.owner.iter().fold(lock, Lock::owner)
    }
}
