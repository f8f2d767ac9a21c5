//! Tests that lack a privilege, a device or data print `SKIPPED:`.
//!
//! Holds three functions; touches standard error, and looks for programs.

use std::process::Command;

/// Prints on standard error that a test did not run, and why; the test then returns.
///
/// With `DOGWILD_REQUIRE_ALL=1` (CI sets it) nothing may be skipped: this panics instead.
pub fn skip(why: &str) {
    if std::env::var_os("DOGWILD_REQUIRE_ALL").is_some_and(|v| v == "1") {
        panic!("DOGWILD_REQUIRE_ALL=1 and a test cannot run: {why}");
    }
    eprintln!("SKIPPED: {why}");
}

/// Whether `program` is there. If it is not, a test that needs it is skipped, and Debian's
/// `package` is named.
pub fn is_there(program: &str, package: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let found = found.is_ok_and(|found| found.status.success());
    if !found {
        skip(&format!("{program} is not there (Debian: {package})"));
    }
    found
}

/// Prints on standard error that a test does not run on this host, because it runs in another place
/// that the same test run starts. Never a failure (that place skips by [`skip`]).
pub fn elsewhere(why: &str, place: &str) {
    eprintln!("ELSEWHERE: runs {place}; here: {why}");
}
