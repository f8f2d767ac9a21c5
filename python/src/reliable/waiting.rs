//! How a call waits: without the interpreter's lock, and not beyond Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::log;

/// Time between two looks at signals and at the log while something is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs `work` in another thread, and looks at signals and at the clock meanwhile: `stop` is set
/// when one of them says so.
pub(super) fn wait<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    until: Option<Instant>,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let waited = py.detach(|| {
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let thread = scope.spawn(move || {
                let result = work();
                // Without a receiver no call waits.
                let _ = tell.send(());
                result
            });
            let mut interrupted = None;
            while let Err(RecvTimeoutError::Timeout) = told.recv_timeout(LOOK_EVERY) {
                if until.is_some_and(|until| Instant::now() >= until) {
                    stop.store(true, Relaxed);
                }
                let signals =
                    Python::attach(|py| log::deliver(py).and_then(|()| py.check_signals()));
                if let Err(signal) = signals {
                    stop.store(true, Relaxed);
                    interrupted.get_or_insert(signal);
                }
            }
            let result = thread.join();
            match (result, interrupted) {
                (_, Some(signal)) => Err(signal),
                (Ok(result), None) => Ok(result),
                (Err(panic), None) => std::panic::resume_unwind(panic),
            }
        })
    });
    let delivered = log::deliver(py);
    waited.and_then(|result| delivered.map(|()| result))
}
