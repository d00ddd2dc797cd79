//! Locks for code without async: the same primitives behind a thread and a small runtime of their own.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::api::held::view_methods;
use crate::api::options::options;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::loss::Loss;
use crate::backend::name::Name;
use crate::support::thread::OwnThread;

/// A [`Store`](crate::Store) for code without async.
///
/// Its client and its background task live on a thread of their own, so guards renew themselves
/// while the caller computes. Guards may be dropped anywhere.
///
/// There is no `run`: a body that blocks cannot be dropped when the lock is lost. Call
/// [`Guard::check`] between steps, or let another thread wait in [`Guard::wait_lost`], and send the
/// token with each write.
///
/// # Errors
///
/// Each call that waits is refused inside of an async runtime, where it would stop all other tasks:
/// it returns [`Unsupported`](crate::ErrorKind::Unsupported) there, also in tokio's
/// `spawn_blocking`. Use `Handle::block_on` and the async types there.
///
/// # Examples
///
/// ```no_run
/// # fn example(connecting: impl Future<Output = leasehold_core::Result<leasehold_core::Store>> + Send + 'static)
/// # -> leasehold_core::Result<()> {
/// use leasehold_core::blocking::Store;
///
/// let store = Store::open(connecting)?; // leasehold::connect("redis://…")
/// let guard = store.lock("orders/42").acquire()?;
/// guard.check()?;
/// guard.release()?;
/// let reading = store.wrap(store.inner().rw_lock("catalog").read()).acquire()?;
/// let leadership = store.wait(store.inner().election("scheduler").campaign("me"))?;
/// store.wait(leadership.resign())?;
/// # drop(reading); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    store: crate::Store,
    thread: OwnThread,
}

impl Store {
    /// Starts the thread, runs `make` there, and waits until the store is made.
    ///
    /// # Errors
    ///
    /// The error of `make`; [`Unsupported`](crate::ErrorKind::Unsupported) inside of an async
    /// runtime; [`Unavailable`](crate::ErrorKind::Unavailable) if no thread can be started.
    pub fn open(
        make: impl IntoFuture<Output = Result<crate::Store>, IntoFuture: Send + 'static>,
    ) -> Result<Store> {
        refuse_inside_a_runtime()?;
        let (thread, store) = OwnThread::start_and_wait(make.into_future())?;
        Ok(Store(Arc::new(Inner { store, thread })))
    }

    /// The async store behind this one. It makes all primitives, for [`wrap`](Store::wrap) and
    /// [`wait`](Store::wait).
    pub fn inner(&self) -> &crate::Store {
        &self.0.store
    }

    /// The exclusive lock of this name: [`crate::Store::lock`].
    pub fn lock(&self, name: impl Into<Name>) -> Lock {
        self.wrap(self.0.store.lock(name))
    }

    /// Any lock of this store without async: a side of an [`RwLock`](crate::RwLock), permits of a
    /// [`Semaphore`](crate::Semaphore).
    pub fn wrap(&self, lock: crate::Lock) -> Lock {
        Lock {
            store: self.clone(),
            lock,
        }
    }

    /// Runs a future of the async types on the store's thread, and waits for its result.
    ///
    /// # Errors
    ///
    /// The error of the future; [`Unsupported`](crate::ErrorKind::Unsupported) inside of an async
    /// runtime; [`Internal`](crate::ErrorKind::Internal) if the future panics.
    pub fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        refuse_inside_a_runtime()?;
        let (done_here, done) = oneshot::channel();
        self.0
            .thread
            .handle
            .spawn(async move { drop(done_here.send(work.await)) });
        done.blocking_recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                "it panicked on the store's thread",
            ))
        })
    }

    /// Releases what this client holds and ends it, waiting at most `limit` for the releases:
    /// [`crate::Store::close`], which has the errors too.
    pub fn close(&self, limit: Duration) -> Result<()> {
        let store = self.0.store.clone();
        self.wait(async move { store.close(limit).await })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread waits for the releases of guards that were dropped just before.
        let ended = self.store.scope.client.keeper_stopped();
        self.thread.outlive(ended);
    }
}

/// A [`Lock`](crate::Lock) for code without async.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    store: Store,
    lock: crate::Lock,
}

options!(Lock, .lock.options);

impl Lock {
    /// Blocks until the lock is held: [`crate::Lock::acquire`], which has the errors too.
    pub fn acquire(&self) -> Result<Guard> {
        self.take(self.lock.acquire())
    }

    /// Takes the lock now, or not at all: [`crate::Lock::try_acquire`], which has the errors too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: leasehold_core::blocking::Store) -> leasehold_core::Result<()> {
    /// match store.lock("nightly").try_acquire() {
    ///     Ok(guard) => guard.release()?,
    ///     Err(refused) => println!("skipped: {}", refused.into_contention()?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Result<Guard> {
        self.take(self.lock.try_acquire())
    }

    /// Blocks at most for `wait`: [`crate::Lock::acquire_timeout`], which has the errors too.
    pub fn acquire_timeout(&self, wait: Duration) -> Result<Guard> {
        self.take(self.lock.acquire_timeout(wait))
    }

    fn take(&self, acquire: crate::Acquire) -> Result<Guard> {
        self.store.wait(acquire).map(|guard| Guard {
            guard,
            store: self.store.clone(),
        })
    }
}

/// A held lock: [`crate::Guard`] for code without async. Dropping it releases in the background,
/// and never blocks.
#[must_use = "dropping the guard releases the lock; bind it to a name, not to `_`"]
pub struct Guard {
    guard: crate::Guard,
    store: Store,
}

view_methods!(Guard, .guard.hold());

impl Guard {
    /// Blocks until the hold has ended, and returns the reason.
    ///
    /// For a thread that watches over the work of another one, or has nothing else to do.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) inside of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: leasehold_core::blocking::Guard) {
    /// std::thread::scope(|scope| {
    ///     let held = guard.view();
    ///     scope.spawn(move || {
    ///         while held.is_valid() {
    ///             // … one step …
    ///         }
    ///     });
    ///     println!("{:?}", guard.wait_lost());
    /// });
    /// # }
    /// ```
    pub fn wait_lost(&self) -> Result<Loss> {
        let lost = self.lost();
        self.store.wait(async move { Ok(lost.await) })
    }

    /// Releases the lock, and waits for the answer of the store: [`crate::Guard::release`], which
    /// has the errors too.
    ///
    /// Inside of an async runtime it is refused, and the lock is released in the background.
    pub fn release(self) -> Result<()> {
        let Guard { guard, store } = self;
        store.wait(guard.release())
    }

    /// The async guard, for what only that one can do. It still lives on the store's thread.
    pub fn into_inner(self) -> crate::Guard {
        self.guard
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

fn refuse_inside_a_runtime() -> Result<()> {
    match Handle::try_current() {
        Ok(_) => Err(Error::new(
            ErrorKind::Unsupported,
            "a blocking call inside of an async runtime would stop its tasks: use the async types here",
        )),
        Err(_) => Ok(()),
    }
}
