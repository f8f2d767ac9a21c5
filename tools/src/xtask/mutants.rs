//! `cargo xtask mutants`: single changes to the protocol of the stream, or to how work on devices
//! is kept in order, each of which the tests must catch.
//!
//! Works on the last commit, in a worktree under `target/mutants` with a target folder of its own.
//! All changes of a set are built at once, each behind a number that [`CHOICE`] turns on in a run
//! of the tests: a mutant costs a run, not a build. A mutant that survives shows a rule that no
//! test holds: write that test.
//!
//! Invariant: each change is a whole expression or whole statements and fits exactly one place of
//! the tree; a test of this file holds that, so the lists stay true.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{output, root, test_program};

mod catchers;
mod device;
mod forks;
mod on_standin;
mod stream;
mod tests_of_stream;

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

/// Mutants that are built together.
struct Set {
    /// Where their files are.
    folder: &'static str,
    mutants: Vec<Mutant>,
    /// Of the library.
    features: &'static [&'static str],
    first_failure: FirstFailure,
}

/// The first test that fails, in a program of tests with a mutant or without; none: all pass.
type FirstFailure = fn(&Path, Option<(usize, &Mutant)>) -> Result<Option<String>>;

/// Which set.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Of {
    /// The stream's protocol.
    Stream,
    /// Work on devices and what comes of it, on the stand-in for CUDA's driver. Takes g++.
    Device,
}

impl Of {
    fn set(self) -> Set {
        match self {
            Self::Stream => Set {
                folder: "src/stream",
                mutants: [stream::MUTANTS, forks::MUTANTS].concat(),
                features: &[],
                first_failure: tests_of_stream::first_failure,
            },
            Self::Device => Set {
                folder: "src",
                mutants: device::MUTANTS.to_vec(),
                features: &["cuda", "program"],
                first_failure: on_standin::first_failure,
            },
        }
    }
}

/// One change.
#[derive(Clone, Copy, Debug)]
struct Mutant {
    /// What is wrong then.
    name: &'static str,
    /// Under the folder of its set.
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
            "mutant `{}` fits {places} places of {}, not one",
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
fn changed(mutants: &[Mutant], file: &str, text: &str) -> Result<String> {
    let mut places = Vec::new();
    let all = mutants.iter().enumerate();
    for (number, mutant) in all.filter(|(_, mutant)| mutant.file == file) {
        places.push((mutant.place(text)?, number));
    }
    // From the end, so that places stay where they are.
    places.sort_unstable_by(|a, b| b.cmp(a));
    let mut text = text.to_owned();
    let groups = places.chunk_by(|(a, _), (b, _)| a == b);
    for group in groups {
        let (at, first) = group[0];
        let first = mutants[first];
        let mut with = String::new();
        for (_, number) in group {
            let Mutant { name, new, old, .. } = mutants[*number];
            ensure!(old == first.old, "mutant `{name}` overlaps another");
            with += &format!("if crate::mutant({number}) {{ {new} }} else ");
        }
        with += &format!("{{ {} }}", first.old);
        if !first.is_statement() {
            with = format!("({with})");
        }
        text.replace_range(at..at + first.old.len(), &with);
    }
    Ok(text)
}

/// Tries all mutants of a set, or those whose names contain `only`.
pub(crate) fn run(of: Of, only: Option<&str>) -> Result<()> {
    let set = of.set();
    let all = set.mutants.iter().enumerate();
    let wanted: Vec<_> = all
        .filter(|(_, mutant)| only.is_none_or(|only| mutant.name.contains(only)))
        .collect();
    ensure!(
        !wanted.is_empty(),
        "no mutant is named `{}`: leave out --only, and all are tried, each with its name",
        only.unwrap_or_default()
    );
    let tests = build(&set)?;
    let unchanged = (set.first_failure)(&tests, None)?;
    ensure!(
        unchanged.is_none(),
        "the tests fail without any change: {unchanged:?}"
    );
    let mut survived = Vec::new();
    for (number, mutant) in wanted {
        let start = Instant::now();
        let caught_by = (set.first_failure)(&tests, Some((number, mutant)))?;
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

/// Where trees and programs of tests are.
fn workshop() -> PathBuf {
    root().join("target/mutants")
}

/// Builds the tests of the library, with all mutants in them; where they are.
fn build(set: &Set) -> Result<PathBuf> {
    let tree = workshop().join("tree");
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
    let mut files: Vec<_> = set.mutants.iter().map(|mutant| mutant.file).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        rewrite(&tree.join(set.folder).join(file), |text| {
            changed(&set.mutants, file, text)
        })?;
    }
    rewrite(&tree.join("src/lib.rs"), |text| {
        Ok(format!("{text}{SWITCH}"))
    })?;
    let mut build = Command::new("cargo");
    build.args(["test", "--no-default-features", "--lib", "--no-run"]);
    build.arg("--features").arg(set.features.join(","));
    build.env("CARGO_TARGET_DIR", workshop().join("built"));
    test_program(build.current_dir(&tree))
}

fn rewrite(path: &Path, change: impl Fn(&str) -> Result<String>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    fs::write(path, change(&text)?).with_context(|| path.display().to_string())
}

/// `command` with a mutant, or with none.
fn with_mutant(command: &mut Command, number: Option<usize>) {
    command.env_remove(CHOICE);
    if let Some(number) = number {
        command.env(CHOICE, number.to_string());
    }
}

/// The test that a line of the runner says has failed.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_catcher_is_of_a_mutant() {
        let mutants = Of::Stream.set().mutants;
        let mut named = std::collections::BTreeSet::new();
        let lines = include_str!("mutants/catchers.txt").lines().count();
        assert_eq!(catchers::all().count(), lines);
        for (name, _) in catchers::all() {
            assert!(mutants.iter().any(|mutant| mutant.name == name), "{name}");
            assert!(named.insert(name), "{name}: twice");
        }
    }

    #[test]
    fn each_mutant_fits_one_place() {
        for set in [Of::Stream, Of::Device].map(Of::set) {
            assert!(set.mutants.len() >= 20);
            for (number, mutant) in set.mutants.iter().enumerate() {
                let path = root().join(set.folder).join(mutant.file);
                let text = fs::read_to_string(&path).expect("a file of the set");
                let text = changed(&set.mutants, mutant.file, &text);
                let text = text.unwrap_or_else(|error| panic!("{error:#}"));
                let switch = format!("if crate::mutant({number}) {{ {} }}", mutant.new);
                assert_eq!(text.matches(&switch).count(), 1, "{}", mutant.name);
            }
        }
    }
}
