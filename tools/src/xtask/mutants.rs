//! `cargo xtask mutants`: single changes to the protocol of the stream, each of which the tests
//! must catch.
//!
//! Works on the last commit, in a worktree under `target/mutants` with a target folder of its own.
//! A mutant that survives shows a rule that no test holds: write that test. Invariant: each change
//! fits exactly one place of the tree; a test of this file holds that, so the list stays true.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{output, root};

mod list;

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
    /// The file of the tree at `root` with the change.
    fn of(&self, root: &Path) -> Result<String> {
        let path = root.join("src/stream").join(self.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let places = text.matches(self.old).count();
        ensure!(
            places == 1,
            "mutant `{}` fits {places} places of {}, not one",
            self.name,
            path.display()
        );
        Ok(text.replace(self.old, self.new))
    }
}

/// Tries all mutants, or those whose names contain `only`.
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    let folder = root().join("target/mutants");
    let tree = folder.join("tree");
    if !tree.exists() {
        let mut add = Command::new("git");
        add.args(["worktree", "add", "--detach", "--force"]);
        output(add.arg(&tree).current_dir(root()))?;
    }
    let wanted = |mutant: &&Mutant| only.is_none_or(|only| mutant.name.contains(only));
    ensure!(
        list::MUTANTS.iter().any(|mutant| wanted(&mutant)),
        "no mutant is named `{}`: leave out --only, and all are tried, each with its name",
        only.unwrap_or_default()
    );
    let mut survived = Vec::new();
    for mutant in list::MUTANTS.iter().filter(wanted) {
        let caught_by = attempt(mutant, &tree, &folder.join("built"))?;
        match caught_by.first() {
            Some(_) => dogwild_lab::say!("{}: caught by {}", mutant.name, caught_by.join(", ")),
            None => {
                dogwild_lab::say!("{}: SURVIVED", mutant.name);
                survived.push(mutant.name);
            }
        }
    }
    ensure!(survived.is_empty(), "no test catches: {survived:?}");
    Ok(())
}

/// The tests of the stream that fail with `mutant` (some of them: the first that fail).
fn attempt(mutant: &Mutant, tree: &Path, built: &Path) -> Result<Vec<String>> {
    let commit = output(
        Command::new("git")
            .args(["rev-parse", "HEAD"])
            .current_dir(root()),
    )?;
    let mut fresh = Command::new("git");
    fresh.args(["checkout", "--quiet", "--force", "--detach", commit.trim()]);
    output(fresh.current_dir(tree))?;
    fs::write(tree.join("src/stream").join(mutant.file), mutant.of(tree)?)?;
    let mut tests = Command::new("cargo");
    tests.args(["test", "--lib", "stream::"]);
    tests.env("CARGO_TARGET_DIR", built).current_dir(tree);
    let ended = tests.output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() {
        return Ok(Vec::new());
    }
    let failed = said.lines().filter_map(|line| line.strip_prefix("test "));
    let failed = failed.filter_map(|line| line.strip_suffix(" ... FAILED"));
    let failed: Vec<String> = failed.take(4).map(str::to_owned).collect();
    if failed.is_empty() {
        let why = String::from_utf8_lossy(&ended.stderr).into_owned();
        bail!(
            "mutant `{}` is not built, or ends the tests: {why}{said}",
            mutant.name
        );
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_fits_one_place() {
        assert!(list::MUTANTS.len() >= 20);
        for mutant in list::MUTANTS {
            let text = mutant
                .of(&root())
                .unwrap_or_else(|error| panic!("{error:#}"));
            assert!(text.contains(mutant.new), "{}", mutant.name);
        }
    }
}
