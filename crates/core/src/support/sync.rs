//! A mutex whose poison is ignored: our critical sections leave no half-made state behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a mutex, whose poison is ignored: a store leaves no half-made state behind either.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
