//! `dogwild-study repeat`: `dogwild train` with one seed after the other, and what came of it.
//!
//! Starts the program `dogwild` that lies in the folder of this one; reads each run's
//! `summary.json`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use dogwild::watch::screen::{self, Columns};
use dogwild_tools::scratch::Scratch;
use serde_json::Value;

use crate::seeds::spread;

/// Exit codes of `dogwild train` after which there is a summary: done, diverged, target not
/// reached, replicas differ.
pub(crate) const WITH_SUMMARY: [i32; 4] = [0, 3, 4, 5];

/// Arguments of `dogwild-study repeat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Seed of the first; each further run takes the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Arguments of `dogwild train`, all but --seed, --out, --overwrite and --resume
    #[arg(last = true, required = true, value_name = "ARGUMENTS")]
    train: Vec<String>,
}

/// What one run left in its `summary.json`.
#[derive(Debug)]
struct Run {
    seed: u64,
    code: i32,
    summary: Value,
}

impl Args {
    /// Runs all, one after the other: each has the machine to itself.
    pub(crate) fn run(self) -> Result<()> {
        let own = ["--seed", "--out", "--overwrite", "--resume"];
        for arg in &self.train {
            let name = arg.split('=').next().unwrap_or(arg);
            ensure!(
                !own.contains(&name),
                "{name} is set for each run; leave it out behind `--`"
            );
        }
        let program = program()?;
        let folder = Scratch::new("dogwild-repeat")?;
        let mut runs = Vec::new();
        for seed in self.seed..self.seed + u64::from(self.seeds) {
            let run = self.one(&program, &folder.file(&seed.to_string()), seed)?;
            dogwild_lab::progress!("seed {seed}: {}", run.line());
            runs.push(run);
        }
        dogwild_lab::say!("{}", table(&runs).fold(screen::width()));
        let wrong: Vec<String> = runs.iter().filter_map(Run::wrong).collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            bail!("{}", wrong.join("; "))
        }
    }

    fn one(&self, program: &Path, out: &Path, seed: u64) -> Result<Run> {
        let mut command = Command::new(program);
        dogwild_lab::process::die_with_parent(&mut command);
        command.arg("train").args(&self.train);
        command
            .args(["--seed", &seed.to_string(), "--out"])
            .arg(out);
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let code = output.status.code().unwrap_or(-1);
        if !WITH_SUMMARY.contains(&code) {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "seed {seed}: `dogwild train` ended with {}:\n{}",
                output.status,
                said.trim_end()
            );
        }
        let file = out.join("summary.json");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("seed {seed}: cannot read {}", file.display()))?;
        let summary = serde_json::from_str(&text)
            .with_context(|| format!("seed {seed}: {} is not JSON", file.display()))?;
        Ok(Run {
            seed,
            code,
            summary,
        })
    }
}

/// `dogwild` in the folder of this program.
pub(crate) fn program() -> Result<PathBuf> {
    sibling("dogwild")
}

/// A program of dogwild's in the folder of this one.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = own.with_file_name(name);
    ensure!(
        program.is_file(),
        "no program {}: build it (`cargo build --release --workspace`)",
        program.display()
    );
    Ok(program)
}

impl Run {
    fn number(&self, path: &str) -> Option<f64> {
        self.summary.pointer(path)?.as_f64()
    }

    /// Numbers of all nodes (reliable path: workers) at `path`.
    fn nodes(&self, path: &str) -> Vec<f64> {
        let all = ["per_node", "per_worker"];
        let rows = all.iter().filter_map(|key| self.summary[key].as_array());
        rows.flatten()
            .filter_map(|row| row.pointer(path)?.as_f64())
            .collect()
    }

    /// Share of right answers at the end: of the node that has the least.
    fn accuracy(&self) -> Option<f64> {
        let nodes = self.nodes("/test_accuracy").into_iter();
        self.number("/test_accuracy")
            .or_else(|| nodes.min_by(f64::total_cmp))
    }

    /// Iterations and seconds to `--target-accuracy`, if it was reached.
    fn target(&self) -> Option<[f64; 2]> {
        let levels = self.summary["time_to_accuracy"].as_array()?;
        let level = levels.iter().find(|level| level["target"] == true)?;
        let at = |key: &str| level["cluster"][key].as_f64();
        Some([at("iterations")?, at("seconds")?])
    }

    /// Iterations per second of the whole cluster.
    fn pace(&self) -> Option<f64> {
        let all: f64 = self.nodes("/iterations").iter().sum();
        Some(all / self.number("/train_s")?).filter(|pace| pace.is_finite())
    }

    fn line(&self) -> String {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
        };
        let target = self.target().map_or_else(String::new, |[iterations, s]| {
            format!(", target after {iterations} iterations, {s:.1} s")
        });
        format!(
            "{} %, {} iterations in {} s{target}{}",
            number(self.accuracy().map(|share| share * 100.0), 2),
            number(self.number("/iterations"), 0),
            number(self.number("/train_s"), 1),
            self.wrong()
                .map_or(String::new(), |_| format!(", exit code {}", self.code)),
        )
    }

    /// Results that make a run a failure.
    fn wrong(&self) -> Option<String> {
        let what = match self.code {
            0 => return None,
            3 => "diverged",
            4 => "did not reach the target",
            _ => "replicas differ",
        };
        Some(format!("seed {} {what}", self.seed))
    }
}

/// A row for each figure that some run has.
fn table(runs: &[Run]) -> Columns {
    let mut table = Columns::boxed(["", "median", "lowest to highest", "runs"]);
    let mut row = |name: &str, digits: usize, values: Vec<f64>| {
        if let Some((low, median, high)) = spread(values.clone()) {
            table.row([
                name.to_owned(),
                format!("{median:.digits$}"),
                format!("{low:.digits$} to {high:.digits$}"),
                values.len().to_string(),
            ]);
        }
    };
    let each = |of: &dyn Fn(&Run) -> Option<f64>| runs.iter().filter_map(of).collect();
    let target = |i: usize| {
        runs.iter()
            .filter_map(|run| Some(run.target()?[i]))
            .collect()
    };
    row(
        "accuracy at the end, %",
        2,
        each(&|run| Some(run.accuracy()? * 100.0)),
    );
    row("iterations", 0, each(&|run| run.number("/iterations")));
    row("training, s", 1, each(&|run| run.number("/train_s")));
    row("iterations/s of the cluster", 1, each(&Run::pace));
    row("iterations to the target", 0, target(0));
    row("s to the target", 1, target(1));
    let most =
        |path: &'static str| move |run: &Run| run.nodes(path).into_iter().max_by(f64::total_cmp);
    row(
        "age p50, local steps",
        0,
        each(&most("/stream/age_steps_p50")),
    );
    row(
        "age p99, local steps",
        0,
        each(&most("/stream/age_steps_p99")),
    );
    row(
        "positions lost, %",
        2,
        each(&|run| Some(most("/positions_lost_share")(run)? * 100.0)),
    );
    row(
        "warnings",
        0,
        each(&|run| Some(run.summary["warnings"].as_array()?.len() as f64)),
    );
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(summary: Value) -> Run {
        Run {
            seed: 1,
            code: 0,
            summary,
        }
    }

    #[test]
    fn the_worst_node_counts() {
        let both = run(json!({"train_s": 2.0, "per_node": [
            {"test_accuracy": 0.98, "iterations": 30},
            {"test_accuracy": 0.97, "iterations": 10},
        ]}));
        assert_eq!(both.accuracy(), Some(0.97));
        assert_eq!(both.pace(), Some(20.0));
        // The reliable path has one accuracy, workers instead of nodes.
        let workers = run(json!({"train_s": 4.0, "test_accuracy": 0.9, "per_worker": [
            {"iterations": 20}, {"iterations": 20},
        ]}));
        assert_eq!(workers.accuracy(), Some(0.9));
        assert_eq!(workers.pace(), Some(10.0));
    }

    #[test]
    fn only_the_target_is_the_target() {
        let level = |accuracy: f64, target: bool, iterations: u64| {
            json!({"accuracy": accuracy, "target": target,
                   "cluster": {"iterations": iterations, "seconds": 1.5}})
        };
        let levels = json!({"time_to_accuracy": [level(0.5, false, 10), level(0.98, true, 90)]});
        assert_eq!(run(levels).target(), Some([90.0, 1.5]));
        let missed = json!({"time_to_accuracy": [{"target": true, "cluster": null}]});
        assert_eq!(run(missed).target(), None);
    }
}
