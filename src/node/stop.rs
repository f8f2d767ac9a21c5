//! Requests to end: signals, which are Ctrl-C (INT), TERM and the terminal that closes (HUP), and
//! the end of standard input.
//!
//! Touches signal dispositions, standard input, and `/proc/self/status` once.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Signals that ask a program to end.
const ASKING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// A program's work was cut short by this signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted by {}", signal_name(*.0))]
pub struct Interrupted(pub i32);

impl Interrupted {
    /// What the program ends with.
    pub fn code(self) -> u8 {
        code_of(self.0)
    }
}

/// A flag that a signal sets, and which signal it was.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// The flag itself, for those that outlive this.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// What a program ends with whose work a signal cut short: 128 and the signal's number.
    pub fn code(&self) -> Option<u8> {
        self.signal().map(code_of)
    }

    /// An error once a signal came: what was asked for is not done.
    ///
    /// # Errors
    /// Which signal it was.
    pub fn check(&self) -> Result<(), Interrupted> {
        self.signal()
            .map_or(Ok(()), |signal| Err(Interrupted(signal)))
    }

    /// The signal's number, if one came.
    pub fn signal(&self) -> Option<i32> {
        let signal = i32::try_from(self.signal.load(Relaxed)).ok();
        signal.filter(|_| self.flag.load(Relaxed))
    }
}

impl Deref for Stop {
    type Target = AtomicBool;

    fn deref(&self) -> &AtomicBool {
        &self.flag
    }
}

/// True for the exit codes of programs that a signal asked to end.
pub fn is_code_of_signal(code: i32) -> bool {
    ASKING
        .iter()
        .any(|&signal| i32::from(code_of(signal)) == code)
}

/// What a signal that asks to end is called.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        SIGHUP => "HUP (the terminal was closed)",
        SIGINT => "INT (Ctrl-C)",
        SIGTERM => "TERM",
        _ => "a signal",
    }
}

fn code_of(signal: i32) -> u8 {
    128 + signal as u8
}

/// A flag that INT, TERM and HUP set. A second INT or TERM ends the process at once.
///
/// # Errors
/// The system refuses the handlers.
pub fn stop_on_signals() -> io::Result<Stop> {
    let stop = Stop::default();
    // A terminal that closes sends HUP more than once (the shell, then the kernel): only the others
    // count as impatience.
    let impatient = Arc::new(AtomicBool::new(false));
    for signal in ASKING {
        if signal == SIGHUP && is_ignored(SIGHUP) {
            // Started by nohup: the terminal may go.
            continue;
        }
        if signal != SIGHUP {
            flag::register_conditional_shutdown(
                signal,
                i32::from(code_of(signal)),
                impatient.clone(),
            )?;
            flag::register(signal, impatient.clone())?;
        }
        flag::register_usize(signal, stop.signal.clone(), signal as usize)?;
        flag::register(signal, stop.flag.clone())?;
    }
    Ok(stop)
}

/// Sets `stop` when standard input ends. A pipe ends when the last process that holds its other end
/// does, however that died. What comes through it is not read for anything.
///
/// # Errors
/// No thread can be started.
pub fn stop_at_eof(stop: &Stop) -> io::Result<()> {
    let flag = stop.flag().clone();
    let read = move || {
        // An input that cannot be read will never tell of an end: it is none.
        let ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        log::info!(
            "standard input has ended{}",
            match ended {
                Ok(_) => String::new(),
                Err(error) => format!(" ({error})"),
            }
        );
        flag.store(true, Relaxed);
    };
    let thread = std::thread::Builder::new().name("until-eof".into());
    thread.spawn(read).map(drop)
}

/// True if this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_shells() {
        assert_eq!(ASKING.map(code_of), [129, 130, 143]);
        assert!(is_code_of_signal(143) && !is_code_of_signal(137) && !is_code_of_signal(1));
        assert_eq!(Stop::default().code(), None);
    }
}
