//! `cargo xtask storm`: the storms of the simulator over as many seeds as a night has time for.
//!
//! One run of the test program for each seed, so that a seed that fails ends no other, and as many
//! at a time as there are cores. All chance is in the seed and the commit: what failed fails again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};

use super::{output, root, test_program};

/// The tests that take the seeds, by the end of their names.
const TESTS: &str = "seeds_of_choice";

/// Seeds as `FROM..TO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    from: u64,
    to: u64,
}

impl std::str::FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = || format!("`{text}` is not FROM..TO, as 100..200");
        let (from, to) = text.split_once("..").ok_or_else(why)?;
        let [from, to] = [from, to].map(|end| end.parse().map_err(|_| why()));
        let (from, to) = (from?, to?);
        if from >= to {
            return Err(format!("`{text}` has no seed: give a larger end"));
        }
        Ok(Self { from, to })
    }
}

/// Runs the storms of `seeds`, and says which of them failed. What happens in them is written to
/// the folder `trace`, a file for each run.
pub(crate) fn run(seeds: Seeds, trace: Option<&Path>) -> Result<()> {
    let trace = trace.map(folder).transpose()?;
    let commit = output(Command::new("git").args(["describe", "--always", "--dirty"]))?;
    let commit = commit.trim();
    dogwild_lab::say!(
        "--- storms of the seeds {}..{} at {commit}",
        seeds.from,
        seeds.to
    );
    let mut build = Command::new("cargo");
    build.args(["test", "--lib", "--no-run"]);
    let program = test_program(build.current_dir(root()))?;
    let next = Mutex::new(seeds.from..seeds.to);
    let take = || next.lock().ok()?.next();
    let work = || {
        let mut failed = Vec::new();
        while let Some(seed) = take() {
            let (well, said) = run_seed(&program, seed, trace.as_deref())?;
            dogwild_lab::say!("{said}");
            failed.extend((!well).then_some(seed));
        }
        anyhow::Ok(failed)
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let lists = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let lists = workers
            .into_iter()
            .map(|one| one.join().expect("no worker panics"));
        lists.collect::<Result<Vec<_>>>()
    });
    let mut failed = lists?.concat();
    failed.sort_unstable();
    if let Some(seed) = failed.first() {
        bail!(
            "{} of {} seeds failed at {commit}: {failed:?}; `cargo xtask storm --seeds {seed}..{} --trace \
             FOLDER` there follows the first of them frame by frame",
            failed.len(),
            seeds.to - seeds.from,
            seed + 1
        );
    }
    Ok(())
}

/// All storms of a seed: whether all is well, and what is to be said of it.
fn run_seed(program: &Path, seed: u64, trace: Option<&Path>) -> Result<(bool, String)> {
    let mut storm = Command::new(program);
    storm.args([TESTS, "--ignored", "--nocapture", "--test-threads", "1"]);
    storm.env("DOGWILD_STORM_SEEDS", format!("{seed}..{}", seed + 1));
    if let Some(folder) = trace {
        storm.env("DOGWILD_STORM_TRACE", folder);
    }
    let ended = storm.current_dir(root()).output();
    let ended = ended.with_context(|| format!("cannot run {}", program.display()))?;
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let said = match (ended.status.success(), lost_work(&said)) {
        (false, _) => format!("seed {seed}: FAILED\n{said}"),
        (true, 0) => format!("seed {seed}: well"),
        (true, runs) => format!("seed {seed}: well; work was lost, and reported, in {runs} runs"),
    };
    Ok((ended.status.success(), said))
}

/// In how many series of runs nodes reported that work was lost, by what the storms say.
fn lost_work(said: &str) -> usize {
    said.matches("lost work: [").count() - said.matches("lost work: []").count()
}

/// The folder at `path`, made if it is not there, as a whole path. What is in it is of another run.
fn folder(path: &Path) -> Result<PathBuf> {
    let why = || format!("cannot make the folder {} for traces", path.display());
    std::fs::create_dir_all(path).with_context(why)?;
    let path = path.canonicalize().with_context(why)?;
    if path.read_dir().with_context(why)?.next().is_some() {
        bail!(
            "{} is not empty: give --trace a folder of its own",
            path.display()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_two_ends_and_one_seed_at_least() {
        assert_eq!("3..5".parse(), Ok(Seeds { from: 3, to: 5 }));
        for (text, word) in [("7", "FROM..TO"), ("a..9", "FROM..TO"), ("5..5", "no seed")] {
            let said = text.parse::<Seeds>().unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn work_that_was_lost_is_seen() {
        let none = "71 s in 0.3 s (237 times); lost work: []\n";
        let one = "71 s in 0.3 s (237 times); lost work: [7]\n";
        assert_eq!([none, one].map(lost_work), [0, 1]);
        assert_eq!(lost_work(&[one, none, one].concat()), 2);
    }

    #[test]
    fn traces_go_to_an_empty_folder() {
        let around = tempfile::tempdir().unwrap();
        let new = around.path().join("a/b");
        assert_eq!(folder(&new).unwrap(), new.canonicalize().unwrap());
        assert!(folder(&new).is_ok());
        let said = format!("{:#}", folder(around.path()).unwrap_err());
        assert!(said.contains("is not empty"), "{said}");
        let file = new.join("file");
        std::fs::write(&file, "").unwrap();
        let said = format!("{:#}", folder(&file).unwrap_err());
        assert!(said.contains("cannot make the folder"), "{said}");
    }
}
