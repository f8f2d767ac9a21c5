//! Tests that lack a privilege, a device or data print `SKIPPED:`.
//!
//! Holds two functions; touches standard error only.

/// Prints on standard error that a test did not run, and why; the test then returns.
///
/// With `DOGWILD_REQUIRE_ALL=1` (CI sets it) nothing may be skipped: this panics instead.
pub fn skip(why: &str) {
    if std::env::var_os("DOGWILD_REQUIRE_ALL").is_some_and(|v| v == "1") {
        panic!("DOGWILD_REQUIRE_ALL=1 and a test cannot run: {why}");
    }
    eprintln!("SKIPPED: {why}");
}

/// Prints on standard error that a test does not run on this host, because it runs in another place
/// that the same test run starts. Never a failure (that place skips by [`skip`]).
pub fn elsewhere(why: &str, place: &str) {
    eprintln!("ELSEWHERE: runs {place}; here: {why}");
}
