//! How the threads of one member end together: all end, and the first error is reported.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::error::PoseidonError;
use super::sync::lock;

/// The shutdown of one member: requested from outside, or begun by the first error.
pub(super) struct Shutdown<'s> {
    stop: &'s AtomicBool,
    failed: AtomicBool,
    error: Mutex<Option<PoseidonError>>,
}

impl<'s> Shutdown<'s> {
    /// A shutdown that begins when `stop` is set, or with the first error.
    pub(super) fn new(stop: &'s AtomicBool) -> Self {
        Self {
            stop,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Begins the shutdown with `error`. Of several errors the first is kept: the others usually
    /// follow from it.
    pub(super) fn fail(&self, error: PoseidonError) {
        lock(&self.error).get_or_insert(error);
        self.failed.store(true, Relaxed);
    }

    /// True if all threads must end now.
    pub(super) fn has_begun(&self) -> bool {
        self.failed.load(Relaxed) || self.is_requested()
    }

    /// True if the caller asked for it: `stop` is set.
    pub(super) fn is_requested(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// The reason that the other members are given.
    pub(super) fn reason(&self) -> Option<String> {
        let error = lock(&self.error).as_ref().map(ToString::to_string);
        error.or(self.is_requested().then(|| "stopped by a signal".into()))
    }

    /// The result of the run. A member that was asked to stop has not failed, whatever errors its
    /// threads saw meanwhile.
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
