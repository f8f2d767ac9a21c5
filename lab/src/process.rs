//! Processes that must not outlive the one that started them, for programs that start components.

use std::process::Command;

use crate::sys;

/// Lets `command` be killed when the thread that starts it ends, however that happens.
/// (`Lab::command` does so by itself.)
pub fn die_with_parent(command: &mut Command) {
    sys::die_with_parent(command);
}

/// Asks process `pid` to end (SIGTERM). One that is gone already is no error.
pub fn terminate(pid: u32) {
    // The only failures are "gone" and "not yours"; nothing is left to be done in either case.
    let _ = sys::end(pid, false);
}
