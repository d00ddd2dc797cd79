//! A value, and the tasks that wait for its changes, in their order.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Notify;

#[derive(Debug)]
struct Shared<T> {
    value: RwLock<T>,
    /// The number of changes.
    version: AtomicUsize,
    is_closed: AtomicBool,
    changed: Notify,
}

impl<T> Shared<T> {
    fn read(&self) -> Ref<'_, T> {
        Ref(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn version(&self) -> usize {
        self.version.load(Ordering::SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// Read access to the value, as long as this lives.
#[derive(Debug)]
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The error that nothing changes the value any more.
#[derive(Clone, Copy, Debug)]
pub struct RecvError;

/// Changes the value.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// Waits for changes.
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: usize,
}

/// Returns a sender that changes a value, and a receiver that waits for changes.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// Returns a sender with this value, and without receivers.
    pub fn new(value: T) -> Sender<T> {
        let (version, is_closed, changed) = Default::default();
        Sender(Arc::new(Shared {
            value: RwLock::new(value),
            version,
            is_closed,
            changed,
        }))
    }

    /// Changes the value, if `change` returns true.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let is_changed = change(&mut self.0.value.write().unwrap_or_else(PoisonError::into_inner));
        if is_changed {
            self.0.version.fetch_add(1, Ordering::SeqCst);
            self.0.changed.notify_waiters();
        }
        is_changed
    }

    /// Changes the value.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|known| {
            change(known);
            true
        });
    }

    /// Replaces the value, and returns the one before.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_if_modified(|known| {
            std::mem::swap(known, &mut value);
            true
        });
        value
    }

    /// The current value.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.0.read()
    }

    /// Returns a receiver that waits for changes from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            shared: self.0.clone(),
            seen: self.0.version(),
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Sender<T> {
        Sender::new(T::default())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Receiver {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Receiver<T> {
    /// Returns whether there is a change that this receiver has not seen.
    pub fn has_changed(&self) -> Result<bool, RecvError> {
        if self.shared.is_closed() {
            Err(RecvError)
        } else {
            Ok(self.shared.version() != self.seen)
        }
    }

    /// Resolves at a change that this receiver has not seen.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // From here on no change is missed.
            let changed = self.shared.changed.notified();
            let version = self.shared.version();
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.is_closed() {
                return Err(RecvError);
            }
            changed.await;
        }
    }

    /// Resolves when the value satisfies the condition.
    pub async fn wait_for(
        &mut self,
        mut is_so: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, RecvError> {
        let shared = &self.shared;
        loop {
            let changed = shared.changed.notified();
            {
                let value = shared.read();
                self.seen = shared.version();
                if is_so(&value) {
                    return Ok(value);
                }
            }
            if shared.is_closed() {
                return Err(RecvError);
            }
            changed.await;
        }
    }

    /// Returns whether both receivers wait for one value.
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}
