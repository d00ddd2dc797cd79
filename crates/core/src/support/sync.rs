//! A mutex whose poison is ignored: our critical sections leave no half-made state behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex and ignores its poison. A panic inside of a critical section of this crate leaves
/// no half-made state, so the other tasks may go on.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
