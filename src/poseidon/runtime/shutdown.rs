//! How the threads of one member end together: the first error is the one that counts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::PoseidonError;

/// Locks; a thread that panicked while it held the lock has been reported already.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a wake-up of at most `most`.
pub(super) fn wait<'m, T>(
    condvar: &Condvar,
    guard: MutexGuard<'m, T>,
    most: Duration,
) -> MutexGuard<'m, T> {
    let woken = condvar.wait_timeout(guard, most);
    woken.unwrap_or_else(PoisonError::into_inner).0
}

/// Whether this member goes on.
pub(super) struct Shutdown<'s> {
    stop: &'s AtomicBool,
    failed: AtomicBool,
    error: Mutex<Option<PoseidonError>>,
}

impl<'s> Shutdown<'s> {
    /// A member that goes on until `stop` is set or something fails.
    pub(super) fn new(stop: &'s AtomicBool) -> Self {
        Self {
            stop,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Notes an error; the first one counts.
    pub(super) fn fail(&self, error: PoseidonError) {
        lock(&self.error).get_or_insert(error);
        self.failed.store(true, Relaxed);
    }

    /// True if it is to end now.
    pub(super) fn has_begun(&self) -> bool {
        self.failed.load(Relaxed) || self.is_requested()
    }

    /// True if somebody wants it to end.
    pub(super) fn is_requested(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// What others are told.
    pub(super) fn reason(&self) -> Option<String> {
        let error = lock(&self.error).as_ref().map(ToString::to_string);
        error.or(self.is_requested().then(|| "stopped by a signal".into()))
    }

    /// The result: whoever was told to stop has not failed.
    pub(super) fn into_result(self) -> Result<(), PoseidonError> {
        let stopped = self.is_requested();
        match self
            .error
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Some(error) if !stopped => Err(error),
            _ => Ok(()),
        }
    }
}
