//! What runs of an experiment leave, as its folder holds it.
//!
//! One JSON file for each run, `runs/CELL/SEED.json`, written whole or not at all: a kill loses at
//! most the runs that are under way. Invariant: nothing here depends on the clock of the machine,
//! so the files of a run in virtual time are the same bytes each time.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::experiment::Setting;

/// One run: one cell with one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) ended: Ended,
    /// Iterations of all solvers together that were made.
    pub(crate) iterations: u64,
    /// Tests on the way, the last one at the end.
    pub(crate) points: Vec<Point>,
    pub(crate) figures: Figures,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ended {
    /// It made all iterations.
    Done,
    /// A test reached the target, at which the file says to stop.
    Target,
    /// The loss was NaN or infinite.
    Diverged,
}

/// A test on the way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Iterations of all solvers together.
    pub(crate) iterations: u64,
    /// Pictures that they were made of.
    pub(crate) samples: u64,
    /// Seconds of training; in virtual time virtual ones.
    pub(crate) seconds: f64,
    /// Bytes that all nodes have sent, headers of frames included, those of the network not.
    pub(crate) bytes: Option<u64>,
    /// Training loss, smoothed.
    pub(crate) loss: Option<f64>,
    /// Share of right answers, 0 to 1.
    pub(crate) accuracy: f64,
}

/// What was measured over the whole run. `None`: this engine, or this way, does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Time between two positions of a chunk at a slave, seconds, of the node for which it is most.
    pub(crate) age_s_p50: Option<f64>,
    pub(crate) age_s_p90: Option<f64>,
    pub(crate) age_s_p99: Option<f64>,
    /// The same in steps of one of its solvers.
    pub(crate) age_steps_p50: Option<f64>,
    pub(crate) age_steps_p99: Option<f64>,
    /// Bytes per second that a node sent, mean of all.
    pub(crate) sent_bytes_per_s: Option<f64>,
    /// Bytes per second of weights and deltas that were of use at a node: taken or applied, once.
    pub(crate) goodput_bytes_per_s: Option<f64>,
    /// Share of the deliveries of frames that the network lost.
    pub(crate) frames_lost: Option<f64>,
    /// Of the sum of |delta| over all weights that left solvers: the share whose first frame was
    /// lost. Exactly-once sends it again.
    pub(crate) mass_late: Option<f64>,
    /// The share that never arrived.
    pub(crate) mass_lost: Option<f64>,
    /// Share of the time in which solvers computed.
    pub(crate) utilisation: Option<f64>,
    /// Mean length of the solvers' steps, in those of the solver file.
    pub(crate) stride: Option<f64>,
    /// Times that solvers halved their steps because the loss rose.
    pub(crate) halvings: Option<f64>,
    /// Pictures learned from in a second of training, by all nodes.
    pub(crate) samples_per_s: Option<f64>,
    /// The same over that of one node alone, where the program tells it.
    pub(crate) times_one_node: Option<f64>,
    /// Bytes through the interface of the busiest node over the mean of all nodes.
    pub(crate) imbalance: Option<f64>,
    /// Median time that a device waits for the sum of gradients, microseconds.
    pub(crate) wait_us_p50: Option<f64>,
}

/// A run, and what it was made with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(flatten)]
    pub(crate) made: Made,
    #[serde(flatten)]
    pub(crate) run: Run,
}

/// What a run follows from, but for its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// Version and commit of the program.
    pub(crate) dogwild: String,
    pub(crate) setting: Setting,
}

impl Made {
    /// With `setting`, by this build.
    pub(crate) fn with(setting: &Setting) -> Self {
        Self {
            dogwild: version(),
            setting: setting.clone(),
        }
    }
}

/// Version and commit of this program. Asked for once: the machine is looked at with it.
pub(crate) fn version() -> String {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let found = dogwild::job::Experiment::new(serde_json::Map::new());
        let commit = found.commit.map(|commit| format!(" ({commit})"));
        format!("{}{}", found.dogwild, commit.unwrap_or_default())
    });
    VERSION.clone()
}

impl Run {
    /// Share of right answers at the end; `None`: it diverged.
    pub(crate) fn final_accuracy(&self) -> Option<f64> {
        if self.ended == Ended::Diverged {
            return None;
        }
        self.points.last().map(|point| point.accuracy)
    }

    /// Pictures learned from in a second of training.
    pub(crate) fn samples_per_s(&self) -> Option<f64> {
        let last = self.points.last().filter(|last| last.seconds > 0.0)?;
        Some(last.samples as f64 / last.seconds)
    }

    /// What came of it, in a line.
    pub(crate) fn line(&self) -> String {
        let last = self.points.last().map(|point| {
            format!(
                "{:.2} % after {} iterations, {:.1} s",
                point.accuracy * 100.0,
                point.iterations,
                point.seconds
            )
        });
        match (self.ended, last) {
            (Ended::Diverged, None) => format!("diverged at iteration {}", self.iterations),
            (Ended::Diverged, Some(last)) => {
                format!("diverged at iteration {}; {last}", self.iterations)
            }
            (_, last) => last.unwrap_or_else(|| "no test; its figures are kept".to_owned()),
        }
    }

    /// The first test at `target`.
    pub(crate) fn reached(&self, target: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.accuracy >= target)
    }
}

/// The folder of an experiment's results.
#[derive(Clone, Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    fn path(&self, cell: &str, seed: u64) -> PathBuf {
        self.0.join("runs").join(cell).join(format!("{seed}.json"))
    }

    /// The run of `cell` with `seed`; `None`: it has not been made.
    ///
    /// # Errors
    /// The file is not a run.
    pub(crate) fn read(&self, cell: &str, seed: u64) -> Result<Option<Kept>> {
        let path = self.path(cell, seed);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let kept = serde_json::from_str(&text);
        let kept = kept.with_context(|| {
            let path = path.display();
            format!("{path} is not a run's results: remove it, and it is made again")
        })?;
        Ok(Some(kept))
    }

    /// Keeps a run.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn write(&self, cell: &str, kept: &Kept) -> Result<()> {
        let text = serde_json::to_string_pretty(kept)? + "\n";
        write_whole(&self.path(cell, kept.run.seed), text.as_bytes())
    }

    /// Whether there are runs of any cell.
    pub(crate) fn has_runs(&self) -> bool {
        let runs = std::fs::read_dir(self.0.join("runs"));
        runs.is_ok_and(|mut cells| cells.next().is_some())
    }
}

/// Writes a file, and the folders it lies in, whole or not at all.
///
/// # Errors
/// The folder cannot be written; the path is named.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file has a folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    std::fs::write(&new, bytes)
        .and_then(|()| std::fs::rename(&new, path))
        // A half of it would only take the room that is missing.
        .inspect_err(|_| drop(std::fs::remove_file(&new)))
        .with_context(|| format!("cannot write {}", path.display()))
}
