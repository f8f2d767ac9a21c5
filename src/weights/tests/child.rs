//! Tests that need a second process run their own executable once more.

use std::process::Command;

/// The command that runs only the test `path` (as `module_path!()::name`), with output.
pub(crate) fn command(path: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("tests run from a file"));
    command.args(arguments(path));
    command
}

/// Its arguments.
pub(crate) fn arguments(path: &str) -> [&str; 5] {
    let (_crate, name) = path.split_once("::").expect("a path within the crate");
    ["--exact", name, "--nocapture", "--test-threads", "1"]
}
