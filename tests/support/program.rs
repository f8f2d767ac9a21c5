//! The program under test.

use std::process::{Command, Stdio};

/// Where cargo has built it.
pub(crate) const DOGWILD: &str = env!("CARGO_BIN_EXE_dogwild");

/// `dogwild` without arguments, which reads nothing and does not outlive the test that starts it.
pub(crate) fn dogwild() -> Command {
    let mut command = Command::new(DOGWILD);
    dogwild_lab::process::die_with_parent(&mut command);
    command.stdin(Stdio::null());
    command
}
