//! The tests that a mutant of the stream meets.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{Mutant, catchers, failed, with_mutant};

/// Which tests run, one after the other, until one fails: those that caught the mutant before,
/// those of the changed file, those that go through states, all others, and the long ones.
const EXPLORE: &[&str] = &["stream::tests::explore::"];
const OTHERS: &[&str] = &["stream::", "--skip", "stream::tests::explore::"];
const LONG: &[&str] = &["stream::", "--ignored"];

/// The first test that fails; the rest is not run. Without a mutant, long ones are left out.
pub(super) fn first_failure(
    tests: &Path,
    mutant: Option<(usize, &Mutant)>,
) -> Result<Option<String>> {
    let Some((number, mutant)) = mutant else {
        return fails(tests, None, &[EXPLORE, OTHERS]);
    };
    let before = catchers::all().find(|(name, _)| *name == mutant.name);
    if let Some((_, test)) = before {
        let caught = fails(tests, Some(number), &[&[test, "--include-ignored"]])?;
        if caught.is_some() {
            return Ok(caught);
        }
    }
    let own = format!("stream::tests::{}::", mutant.file.trim_end_matches(".rs"));
    fails(tests, Some(number), &[&[&own], EXPLORE, OTHERS, LONG])
}

fn fails(tests: &Path, number: Option<usize>, stages: &[&[&str]]) -> Result<Option<String>> {
    for stage in stages {
        let mut command = Command::new(tests);
        command.args(*stage).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        with_mutant(&mut command, number);
        let mut child = command.spawn().context("cannot run the tests")?;
        let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let mut first = None;
        for line in lines {
            if let Some(name) = failed(&line?) {
                first = Some(name.to_owned());
                child.kill()?;
                break;
            }
        }
        let ended = child.wait()?;
        if first.is_some() {
            return Ok(first);
        }
        if !ended.success() {
            return Ok(Some(format!("the end of all tests ({ended})")));
        }
    }
    Ok(None)
}
