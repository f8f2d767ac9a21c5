//! `cargo xtask mutants`: single changes to the protocol of the stream, each of which the tests
//! must catch.
//!
//! Works on the last commit, in a worktree under `target/mutants` with a target folder of its own.
//! All changes are built at once, each behind a number that [`CHOICE`] turns on in a run of the
//! tests: a mutant costs a run, not a build. A mutant that survives shows a rule that no test
//! holds: write that test.
//!
//! Invariant: each change is a whole expression or whole statements and fits exactly one place of
//! the tree; a test of this file holds that, so the list stays true.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{output, root};

mod list;

/// The variable that has the number of a mutant.
const CHOICE: &str = "DOGWILD_MUTANT";

/// What the changed tree asks.
const SWITCH: &str = r#"
/// Whether this run is that of a mutant (`cargo xtask mutants`).
pub(crate) fn mutant(number: usize) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<usize>> = std::sync::LazyLock::new(|| {
        let chosen = std::env::var("DOGWILD_MUTANT").ok()?;
        Some(chosen.parse().expect("the number of a mutant"))
    });
    *CHOSEN == Some(number)
}
"#;

/// Which tests run, one after the other, until one fails: those of the changed file, those that go
/// through states, all others, and the long ones.
const EXPLORE: &[&str] = &["stream::tests::explore::"];
const OTHERS: &[&str] = &["stream::", "--skip", "stream::tests::explore::"];
const LONG: &[&str] = &["stream::", "--ignored"];

/// One change.
#[derive(Clone, Copy, Debug)]
struct Mutant {
    /// What is wrong then.
    name: &'static str,
    /// Under `src/stream`.
    file: &'static str,
    old: &'static str,
    new: &'static str,
}

impl Mutant {
    /// Where in `text`, which is that of its file, the change is.
    fn place(&self, text: &str) -> Result<usize> {
        let places = text.matches(self.old).count();
        ensure!(
            places == 1,
            "mutant `{}` fits {places} places of src/stream/{}, not one",
            self.name,
            self.file
        );
        Ok(text.find(self.old).unwrap_or_default())
    }

    /// Whether it changes statements, not an expression.
    fn is_statement(&self) -> bool {
        self.old.ends_with(';')
    }
}

/// The text of `file` with all its mutants, each behind its number.
fn changed(file: &str, text: &str) -> Result<String> {
    let mut places = Vec::new();
    let all = list::MUTANTS.iter().enumerate();
    for (number, mutant) in all.filter(|(_, mutant)| mutant.file == file) {
        places.push((mutant.place(text)?, number));
    }
    // From the end, so that places stay where they are.
    places.sort_unstable_by(|a, b| b.cmp(a));
    let mut text = text.to_owned();
    let groups = places.chunk_by(|(a, _), (b, _)| a == b);
    for group in groups {
        let (at, first) = group[0];
        let first = list::MUTANTS[first];
        let mut with = String::new();
        for (_, number) in group {
            let Mutant { name, new, old, .. } = list::MUTANTS[*number];
            ensure!(old == first.old, "mutant `{name}` overlaps another");
            with += &format!("if crate::stream::mutant({number}) {{ {new} }} else ");
        }
        with += &format!("{{ {} }}", first.old);
        if !first.is_statement() {
            with = format!("({with})");
        }
        text.replace_range(at..at + first.old.len(), &with);
    }
    Ok(text)
}

/// Tries all mutants, or those whose names contain `only`.
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    let all = list::MUTANTS.iter().enumerate();
    let wanted: Vec<_> = all
        .filter(|(_, mutant)| only.is_none_or(|only| mutant.name.contains(only)))
        .collect();
    ensure!(
        !wanted.is_empty(),
        "no mutant is named `{}`: leave out --only, and all are tried, each with its name",
        only.unwrap_or_default()
    );
    let tests = build()?;
    ensure!(
        first_failure(&tests, None, &[EXPLORE, OTHERS])?.is_none(),
        "the tests of the stream fail without any change: `cargo test --lib stream::`"
    );
    let mut survived = Vec::new();
    for (number, mutant) in wanted {
        let start = Instant::now();
        let own = format!("stream::tests::{}::", mutant.file.trim_end_matches(".rs"));
        let stages = [&[own.as_str()], EXPLORE, OTHERS, LONG];
        let caught_by = first_failure(&tests, Some(number), &stages)?;
        let seconds = start.elapsed().as_secs_f64();
        let name = mutant.name;
        match caught_by {
            Some(test) => dogwild_lab::say!("{name}: caught by {test}, {seconds:.1} s"),
            None => {
                dogwild_lab::say!("{name}: SURVIVED, {seconds:.1} s");
                survived.push(name);
            }
        }
    }
    ensure!(survived.is_empty(), "no test catches: {survived:?}");
    Ok(())
}

/// Builds the tests of the stream, with all mutants in them; where they are.
fn build() -> Result<PathBuf> {
    let folder = root().join("target/mutants");
    let tree = folder.join("tree");
    if !tree.exists() {
        let mut add = Command::new("git");
        add.args(["worktree", "add", "--detach", "--force"]);
        output(add.arg(&tree).current_dir(root()))?;
    }
    let mut commit = Command::new("git");
    let commit = output(commit.args(["rev-parse", "HEAD"]).current_dir(root()))?;
    let mut fresh = Command::new("git");
    fresh.args(["checkout", "--quiet", "--force", "--detach", commit.trim()]);
    output(fresh.current_dir(&tree))?;
    let stream = tree.join("src/stream");
    let mut files: Vec<_> = list::MUTANTS.iter().map(|mutant| mutant.file).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        rewrite(&stream.join(file), |text| changed(file, text))?;
    }
    rewrite(&tree.join("src/stream.rs"), |text| {
        Ok(format!("{text}{SWITCH}"))
    })?;
    let mut build = Command::new("cargo");
    build.args(["test", "--no-default-features", "--lib", "--no-run"]);
    build.args(["--message-format", "json"]);
    build.env("CARGO_TARGET_DIR", folder.join("built"));
    let said = output(build.current_dir(&tree))?;
    let mut made = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    made.next_back().context("cargo names no program of tests")
}

fn rewrite(path: &Path, change: impl Fn(&str) -> Result<String>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    fs::write(path, change(&text)?).with_context(|| path.display().to_string())
}

/// The first test that fails with that mutant; the rest is not run.
fn first_failure(
    tests: &Path,
    number: Option<usize>,
    stages: &[&[&str]],
) -> Result<Option<String>> {
    for stage in stages {
        let mut command = Command::new(tests);
        command.args(*stage).stdout(Stdio::piped());
        command.stderr(Stdio::null()).env_remove(CHOICE);
        if let Some(number) = number {
            command.env(CHOICE, number.to_string());
        }
        let mut child = command.spawn().context("cannot run the tests")?;
        let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let mut failed = None;
        for line in lines {
            let line = line?;
            let name = line.strip_prefix("test ");
            if let Some(name) = name.and_then(|name| name.strip_suffix(" ... FAILED")) {
                failed = Some(name.to_owned());
                child.kill()?;
                break;
            }
        }
        let ended = child.wait()?;
        if failed.is_some() {
            return Ok(failed);
        }
        if !ended.success() {
            return Ok(Some(format!("the end of all tests ({ended})")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_fits_one_place() {
        assert!(list::MUTANTS.len() >= 20);
        for (number, mutant) in list::MUTANTS.iter().enumerate() {
            let path = root().join("src/stream").join(mutant.file);
            let text = fs::read_to_string(&path).expect("a file of the stream");
            let text = changed(mutant.file, &text).unwrap_or_else(|error| panic!("{error:#}"));
            let switch = format!("if crate::stream::mutant({number}) {{ {} }}", mutant.new);
            assert_eq!(text.matches(&switch).count(), 1, "{}", mutant.name);
        }
    }
}
