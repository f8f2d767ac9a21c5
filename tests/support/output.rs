//! What a program said.

use std::process::{Command, Output};

/// Standard output, then standard error.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs `command`, which must end well, and returns what it said.
#[track_caller]
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = said(&output);
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}

/// Runs `command`, which must fail, and returns what it said on standard error.
#[track_caller]
pub(crate) fn refused(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success(),
        "was not refused: {command:?}\n{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Fails unless each of `words` was said.
#[track_caller]
pub(crate) fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "`{word}` is missing in:\n{said}");
    }
}
