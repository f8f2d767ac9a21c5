//! How the threads of one member end together: all end, and the first error is reported.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::PoseidonError;
use super::sync::lock;

/// The shutdown of one member: requested from outside, or begun by the first error.
pub(super) struct Shutdown<'s> {
    stop: Flag<'s>,
    failed: AtomicBool,
    error: Mutex<Option<PoseidonError>>,
    /// The text of the first error, which stays when the error is taken.
    why: Mutex<Option<String>>,
}

/// The flag by which an end is asked for.
enum Flag<'s> {
    Borrowed(&'s AtomicBool),
    Shared(Arc<AtomicBool>),
}

impl<'s> Shutdown<'s> {
    /// A shutdown that begins when `stop` is set, or with the first error.
    pub(super) fn new(stop: &'s AtomicBool) -> Self {
        Self::of(Flag::Borrowed(stop))
    }

    fn of(stop: Flag<'s>) -> Self {
        Self {
            stop,
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            why: Mutex::new(None),
        }
    }

    /// Begins the shutdown with `error`. Of several errors the first is kept: the others usually
    /// follow from it. One that [`Shutdown::take`] gave away may be given back.
    pub(super) fn fail(&self, error: PoseidonError) {
        let text = error.to_string();
        let mut why = lock(&self.why);
        if *why.get_or_insert_with(|| text.clone()) == text {
            lock(&self.error).get_or_insert(error);
        }
        self.failed.store(true, Relaxed);
    }

    /// True if all threads must end now.
    pub(super) fn has_begun(&self) -> bool {
        self.failed.load(Relaxed) || self.is_requested()
    }

    /// True if the caller asked for it: `stop` is set.
    pub(super) fn is_requested(&self) -> bool {
        match &self.stop {
            Flag::Borrowed(stop) => stop.load(Relaxed),
            Flag::Shared(stop) => stop.load(Relaxed),
        }
    }

    /// The reason that the other members are given.
    pub(super) fn reason(&self) -> Option<String> {
        let why = lock(&self.why).clone();
        why.or(self.is_requested().then(|| "stopped by a signal".into()))
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

impl Shutdown<'static> {
    /// As [`Shutdown::new`], for threads that no caller waits for.
    pub(super) fn shared(stop: Arc<AtomicBool>) -> Self {
        Self::of(Flag::Shared(stop))
    }

    /// The first error, once: later calls say what it was.
    pub(super) fn take(&self) -> Option<PoseidonError> {
        if !self.failed.load(Relaxed) {
            return None;
        }
        let why = lock(&self.why);
        let error = lock(&self.error).take();
        error.or_else(|| why.clone().map(PoseidonError::Ended))
    }
}
