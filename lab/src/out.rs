//! What programs print: lines on standard output (`say!`) and standard error (`note!`, `progress!`)
//! that never panic.
//!
//! A program of the standard library's `println!` dies when its reader goes away (`| head`) or its
//! disk is full, and with it the job. Here the first failure is kept, what follows is dropped, the
//! program goes on, and [`end`] tells at its end. Touches the two streams and two atomic numbers.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Prints a line on standard output; never panics. See [`crate::out`].
#[macro_export]
macro_rules! say {
    ($($word:tt)*) => { $crate::out::line(::std::format_args!($($word)*)) };
}

/// Prints a line on standard error; never panics, and a failure has no consequence.
#[macro_export]
macro_rules! note {
    ($($word:tt)*) => { $crate::out::note(::std::format_args!($($word)*)) };
}

/// Prints a line of progress on standard error, as [`note!`](crate::note!), unless the program is
/// to be quiet.
#[macro_export]
macro_rules! progress {
    ($($word:tt)*) => { $crate::out::progress(::std::format_args!($($word)*)) };
}

/// Whether the program is to print no progress.
///
/// Relaxed: it publishes no other memory.
static QUIET: AtomicBool = AtomicBool::new(false);

/// The errno of the first write to standard output that failed; 0: none yet.
///
/// Relaxed: the number publishes no other memory.
static FAILED: AtomicI32 = AtomicI32::new(0);

/// What `say!` calls.
pub fn line(text: fmt::Arguments<'_>) {
    if FAILED.load(Ordering::Relaxed) == 0 {
        let mut out = io::stdout().lock();
        keep(out.write_fmt(text).and_then(|()| out.write_all(b"\n")));
        keep(out.flush());
    }
}

/// What `note!` calls.
pub fn note(text: fmt::Arguments<'_>) {
    // One write: lines of several processes share a terminal. There is no place left to report a
    // failure to.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// What `progress!` calls.
pub fn progress(text: fmt::Arguments<'_>) {
    if !QUIET.load(Ordering::Relaxed) {
        note(text);
    }
}

/// From now on no progress is printed.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether progress is shown as bars: standard error is a terminal, and the program is not quiet.
pub fn shows_bars() -> bool {
    !QUIET.load(Ordering::Relaxed) && io::stderr().is_terminal()
}

/// An error with its causes on one line. A cause that the error's own text holds already is not
/// repeated.
pub fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

fn keep(result: io::Result<()>) {
    if let Err(error) = result {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        let _ = FAILED.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// False once standard output takes nothing more: its reader is gone, or its disk is full.
/// For loops that do nothing but print.
pub fn is_heard() -> bool {
    FAILED.load(Ordering::Relaxed) == 0
}

/// Why standard output took nothing more, if that is a failure: a reader that has gone away is not
/// one.
pub fn failure() -> Option<io::Error> {
    match FAILED.load(Ordering::Relaxed) {
        0 | libc::EPIPE => None,
        code => Some(io::Error::from_raw_os_error(code)),
    }
}

/// The exit code of `program`, whose work ended with `code`: a success whose results could not be
/// printed is a failure, with a message on standard error.
pub fn end(program: &str, code: ExitCode) -> ExitCode {
    keep(io::stdout().flush());
    let Some(error) = failure() else {
        return code;
    };
    crate::note!("{program}: cannot write to standard output: {error}");
    if code == ExitCode::SUCCESS {
        ExitCode::FAILURE
    } else {
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LabError;

    #[test]
    fn a_cause_is_told_once() {
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let own = LabError::io("open x")(missing());
        assert_eq!(
            told(&own),
            "cannot open x: No such file or directory (os error 2)"
        );
        let refused = LabError::Forbidden(missing());
        assert_eq!(told(&refused).matches("os error").count(), 1);
    }
}
