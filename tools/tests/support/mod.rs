//! What the tests of the tools share: the parts of tests/support that do not need the program
//! `dogwild`, and the tools.
#![allow(
    dead_code,
    reason = "each test is a crate of its own and uses a part of this"
)]

use std::process::{Command, Stdio};

#[path = "../../../tests/support/output.rs"]
pub(crate) mod output;
#[path = "../../../tests/support/process.rs"]
pub(crate) mod process;
#[path = "../../../tests/support/results.rs"]
pub(crate) mod results;
#[path = "../../../tests/support/wait.rs"]
pub(crate) mod wait;

pub(crate) const RAWBENCH: &str = env!("CARGO_BIN_EXE_dogwild-rawbench");
pub(crate) const PLAN: &str = env!("CARGO_BIN_EXE_dogwild-plan");
pub(crate) const STUDY: &str = env!("CARGO_BIN_EXE_dogwild-study");
pub(crate) const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// A tool without arguments, which reads nothing and does not outlive the test that starts it.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    dogwild_lab::process::die_with_parent(&mut command);
    command.stdin(Stdio::null());
    command
}

/// True if labs can be made here; says so loudly if not.
pub(crate) fn labs() -> bool {
    match dogwild_lab::Lab::up(&dogwild_lab::Spec::of(2)) {
        Ok(_) => true,
        Err(error) => {
            dogwild_lab::skip::skip(&format!("a lab: {error}"));
            false
        }
    }
}
