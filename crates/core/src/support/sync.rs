//! The means by which the threads of core synchronize: mutexes, atomic numbers, tasks. They are
//! those of the standard library and of tokio. With `--cfg shuttle` they are Shuttle's, which let a
//! test choose the thread that goes on.

use std::future::Future;
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

use std::sync::PoisonError;

#[cfg(shuttle)]
pub(crate) use chosen::Notify;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
use tokio::runtime::Handle;
#[cfg(not(shuttle))]
pub(crate) use tokio::sync::Notify;

/// Locks a mutex and ignores its poison. A panic inside of a critical section of this crate leaves
/// no half-made state, so the other tasks may go on.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a task of this runtime.
#[cfg(not(shuttle))]
pub(crate) fn spawn(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    runtime.spawn(task);
}

/// Starts a thread of the test, which fails if the task never ends.
#[cfg(shuttle)]
pub(crate) fn spawn(_: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    shuttle::thread::spawn(|| shuttle::future::block_on(task));
}

#[cfg(shuttle)]
mod chosen {
    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::futures::Notified;

    /// Tokio's `Notify`, which Shuttle does not know. Each call first reads an atomic of Shuttle's,
    /// so that any thread may go on before it.
    #[derive(Default)]
    pub(crate) struct Notify(tokio::sync::Notify, AtomicBool);

    impl Notify {
        pub(crate) fn new() -> Notify {
            Notify::default()
        }

        fn here(&self) -> &tokio::sync::Notify {
            self.1.load(Ordering::SeqCst);
            &self.0
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            self.here().notified()
        }

        pub(crate) fn notify_one(&self) {
            self.here().notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.here().notify_waiters();
        }
    }
}
