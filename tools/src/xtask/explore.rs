//! `cargo xtask explore`: the states of a few nodes, with more faults than the tests have time for.
//!
//! Runs the tests of `src/stream/tests/explore.rs`, one after the other, with larger bounds. What
//! they print says how many states there are, and of a wrong one the way to it.

use std::process::Command;

use anyhow::{Result, bail};

use super::root;

/// The tests, by the path of their module.
const TESTS: &str = "stream::tests::explore::";

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// More of each fault.
    pub(crate) more: u8,
    /// Time for each test, s.
    pub(crate) seconds: u64,
    /// Only tests whose names begin with this.
    pub(crate) only: Option<&'a str>,
}

/// Goes through the states within `bounds`.
pub(crate) fn run(bounds: Bounds<'_>) -> Result<()> {
    let status = command(bounds).current_dir(root()).status()?;
    if !status.success() {
        bail!(
            "a state is wrong: DOGWILD_EXPLORE_WAY above, given to that test, follows the way to it"
        );
    }
    Ok(())
}

fn command(
    Bounds {
        more,
        seconds,
        only,
    }: Bounds<'_>,
) -> Command {
    let mut tests = Command::new("cargo");
    tests.args([
        "test",
        "--lib",
        &format!("{TESTS}{}", only.unwrap_or_default()),
    ]);
    tests.args(["--", "--include-ignored", "--nocapture", "--test-threads=1"]);
    tests.env("DOGWILD_EXPLORE_MORE", more.to_string());
    tests.env("DOGWILD_EXPLORE_SECONDS", seconds.to_string());
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_are_told_how_far_to_go() {
        let bounds = Bounds {
            more: 2,
            seconds: 60,
            only: Some("a_new_job"),
        };
        let said = format!("{:?}", command(bounds));
        for word in [
            "DOGWILD_EXPLORE_MORE=\"2\"",
            "DOGWILD_EXPLORE_SECONDS=\"60\"",
            "stream::tests::explore::a_new_job",
        ] {
            assert!(said.contains(word), "{said}");
        }
    }
}
