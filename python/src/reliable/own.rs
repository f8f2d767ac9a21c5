//! What belongs to the process that made it.

use pyo3::prelude::*;

use crate::errors;

/// A value of the process that made it.
pub(super) struct Own<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Own<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            process: std::process::id(),
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Whether it was not taken.
    pub(super) fn is_there(&self) -> bool {
        self.value.is_some()
    }

    pub(super) fn get(&self) -> PyResult<&T> {
        if !self.is_here() {
            let text = "this process was forked from the one that calls poseidon(): \
                        only that one may send gradients";
            return Err(errors::raise("DogwildError", text.into()));
        }
        let closed = || errors::raise("DogwildError", "this worker is closed".into());
        self.value.as_ref().ok_or_else(closed)
    }

    pub(super) fn take(&mut self) -> Option<T> {
        self.value.take().filter(|_| self.is_here())
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            // Its threads and connections are the parent's.
            std::mem::forget(self.value.take());
        }
    }
}
