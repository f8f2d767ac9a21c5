//! The tests: so many times, while other threads compute, or with the long ones.
//!
//! With the long ones, what takes a processor and no clock runs behind the others at the lowest
//! priority: tests in virtual time, and clippy of each feature alone. Tests with processes mostly
//! wait. What runs behind writes to a file in the target folder, which is shown at the end.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail};

use super::{Step, TEST, root, run};

/// What the test command builds, so that a load meets tests and not the compiler.
const BUILD: Step = (&[], "cargo test --workspace --no-run");
/// Where several may fail: a busy machine, and one that others wait for, is asked once for all.
const EACH: &str = " --no-fail-fast";
/// A test in front that hangs ends its own program and no other one: 25 minutes for each. The
/// longest takes a third of that. Words have no spaces in them.
const LIMIT: &str = r#"--config=target."cfg(unix)".runner=["timeout","1500"]"#;
/// Runs tests marked `#[ignore = "long: ..."]` too.
const LONG: &str = " -- --include-ignored";
/// What runs behind writes here, in the target folder.
const LOG: &str = "behind.log";
/// Tests in virtual time, by a part of their names.
const VIRTUAL: [&str; 2] = ["stream::tests::", "sim::"];

/// Which tests are run, and how.
pub(crate) struct Tests {
    /// The long ones too.
    pub(crate) all: bool,
    /// Threads that compute meanwhile.
    pub(crate) load: usize,
    pub(crate) times: usize,
}

impl Tests {
    /// Runs them, and `others`: commands that no test waits for.
    pub(crate) fn run(&self, others: &[String], target: &Path) -> Result<()> {
        let words = self.words();
        if self.all && self.load == 0 {
            run(BUILD)?;
            with_others_behind(&words, others, &target.join(LOG))?;
            return (1..self.times)
                .try_for_each(|_| with_others_behind(&words, &[], &target.join(LOG)));
        }
        others.iter().try_for_each(|words| run((&[], words)))?;
        let tests = || run((&[], &words));
        if self.load == 0 {
            return (0..self.times).try_for_each(|_| tests());
        }
        run(BUILD)?;
        under_load(self.load, || {
            let results: Vec<_> = (0..self.times).map(|_| tests()).collect();
            results.into_iter().collect()
        })
    }

    fn words(&self) -> String {
        let each = if self.all || self.load > 0 { EACH } else { "" };
        let long = if self.all { LONG } else { "" };
        format!("{TEST}{each}{long}")
    }
}

/// Calls `then` while so many threads compute.
fn under_load(threads: usize, then: impl FnOnce() -> Result<()>) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = then();
        stop.store(true, Relaxed);
        result
    })
}

/// Runs the tests of `words` but for those in virtual time; behind them these, then `others`. Says
/// which failed once both are done.
fn with_others_behind(words: &str, others: &[String], path: &Path) -> Result<()> {
    let (front, mut behind) = parts(words);
    behind.extend_from_slice(others);
    let log = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    dogwild_lab::say!("--- tests in virtual time run behind: {}", path.display());
    let (front, behind) = std::thread::scope(|scope| {
        let behind = scope.spawn(|| run_behind(&behind, &log));
        let front = run((&[], &front));
        dogwild_lab::say!("--- waits for what runs behind the tests");
        (front, behind.join().expect("it does not panic"))
    });
    dogwild_lab::say!("{}", String::from_utf8_lossy(&fs::read(path)?));
    front.and(behind)
}

/// The tests that run in front, and those in virtual time. Each is in one of the two: the test
/// program takes a test by what it leaves it out by.
fn parts(words: &str) -> (String, Vec<String>) {
    let skipped = VIRTUAL.map(|name| format!(" --skip {name}")).concat();
    let limited = words.replacen("--workspace", &format!("{LIMIT} --workspace"), 1);
    let virtual_time = format!("{words} {}", VIRTUAL.join(" "));
    (format!("{limited}{skipped}"), vec![virtual_time])
}

/// Runs commands one after the other, with the lowest priority, until one fails. What they say goes
/// to `log`.
fn run_behind(commands: &[String], log: &File) -> Result<()> {
    for words in commands {
        let status = Command::new("nice")
            .args(["-n", "19"])
            .args(words.split_whitespace())
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .status()
            .context("cannot run nice")?;
        if !status.success() {
            bail!("`{words}` failed ({status}): correct it, then `cargo xtask check` again");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_is_in_one_part() {
        let (front, behind) = parts("cargo test --workspace -- --include-ignored");
        assert_eq!(
            front,
            format!(
                "cargo test {LIMIT} --workspace -- --include-ignored --skip stream::tests:: --skip sim::"
            )
        );
        assert_eq!(
            behind,
            ["cargo test --workspace -- --include-ignored stream::tests:: sim::"]
        );
    }

    #[test]
    fn what_runs_behind_is_logged_and_stops_where_it_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(LOG);
        let log = File::create(&path).expect("a file");
        let commands = ["nice", "ls /not/there", "echo never"].map(str::to_owned);
        let error = run_behind(&commands, &log).expect_err("the second fails");
        assert!(
            error.to_string().contains("`ls /not/there` failed"),
            "{error}"
        );
        let said = fs::read_to_string(&path).expect("text");
        assert!(
            said.starts_with("19\n") && said.contains("/not/there"),
            "{said}"
        );
        assert!(!said.contains("never"), "{said}");
    }
}
