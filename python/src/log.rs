//! Lines that the crate logs, for Python's `logging`.
//!
//! Threads of the crate must not wait for the interpreter's lock, so lines are kept until a thread
//! that has it delivers them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// Lines that are kept, at most; later ones are lost.
const LINES_MAX: usize = 1000;

struct Lines(Mutex<Vec<(Level, String)>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Vec<(Level, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        let mut lines = self.lock();
        if self.enabled(record.metadata()) && lines.len() < LINES_MAX {
            lines.push((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Keeps lines from now on.
pub(crate) fn begin() {
    // Another logger of this process stays.
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Gives the lines to the logger `dogwild`.
///
/// # Errors
/// What is no `Exception`: Ctrl-C, which came while Python handled a line.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    let lines = std::mem::take(&mut *LINES.lock());
    if lines.is_empty() {
        return Ok(());
    }
    let told = || -> PyResult<()> {
        let logger = py
            .import("logging")?
            .call_method1("getLogger", ("dogwild",))?;
        for (level, text) in lines {
            let level = match level {
                Level::Error => 40,
                Level::Warn => 30,
                _ => 20,
            };
            logger.call_method1("log", (level, "%s", text))?;
        }
        Ok(())
    };
    match told() {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            // A handler of the user's has failed; what is waited for goes on.
            error.write_unraisable(py, None);
            Ok(())
        }
        told => told,
    }
}
