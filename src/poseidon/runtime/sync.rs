//! Locks and condition variables of a member's threads, without the case of a poisoned lock.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

/// Locks `mutex`, even if a thread panicked while it held the lock: that panic has been printed
/// already, and the threads that remain still have to close their connections.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, `most` at most.
pub(super) fn wait<'m, T>(
    condvar: &Condvar,
    guard: MutexGuard<'m, T>,
    most: Duration,
) -> MutexGuard<'m, T> {
    let woken = condvar.wait_timeout(guard, most);
    woken.unwrap_or_else(PoisonError::into_inner).0
}

/// Locks `shared` for reading, as [`lock`] does.
pub(super) fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `shared` for writing, as [`lock`] does.
pub(super) fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
