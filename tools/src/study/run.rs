//! `dogwild-study run`: all cells of an experiment with all seeds, several at a time, and the
//! report.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dogwild_lab::{note, out, progress};
use indicatif::{ProgressBar, ProgressStyle};

use crate::check::{costs, folder_of};
use crate::collect;
use crate::cost::told;
use crate::engine::{self, Files};
use crate::experiment::cells::{Cell, Cells, cells};
use crate::experiment::{Engine, Experiment, read};
use crate::report;
use crate::results::{Folder, Kept, Made, Run, write_whole};

/// Arguments of `dogwild-study run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The experiment
    file: PathBuf,
    /// Folder for results and report [default: out/ and the name of the file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs at a time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Go on in a folder that has results: what is there and was made with the same settings is
    /// kept
    #[arg(long)]
    resume: bool,
    /// Where to run it, instead of where the file says
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Only the cells of this name, or whose names contain it
    #[arg(long, value_name = "CELL")]
    only: Option<String>,
}

/// A cell with one seed.
struct Task<'a> {
    cell: &'a Cell,
    seed: u64,
    cost: Duration,
}

impl Args {
    /// Runs what is missing, then writes the report.
    pub(crate) fn run(self) -> Result<()> {
        let experiment = match self.engine {
            Some(engine) => read(&self.file)?.on(engine),
            None => read(&self.file)?,
        };
        let all = cells(&experiment)?;
        let chosen = match &self.only {
            Some(only) => all.clone().only(only)?,
            None => all.clone(),
        };
        let folder = Folder(self.out_folder());
        ensure!(
            self.resume || !folder.has_runs(),
            "{} holds results already: --resume goes on with them, --out names another folder",
            folder.0.display()
        );
        let files = Files::in_folder(folder_of(&self.file));
        let costs = costs(&chosen, &files)?;
        let tasks = missing(&experiment, &chosen, &costs, &folder)?;
        let jobs = self.jobs.map_or_else(cores, usize::from);
        announce(&experiment, &chosen, &tasks, jobs);
        // The folder tells what it holds, even if the file changes.
        write_whole(
            &folder.0.join("experiment.toml"),
            experiment.source.as_bytes(),
        )?;
        let work = Work {
            folder: &folder,
            files: &files,
            all: tasks.len(),
            bar: bar(tasks.iter().map(|task| task.cost).sum()),
            done: AtomicUsize::new(0),
            failed: Mutex::default(),
        };
        // Runs in real time have the machine to themselves.
        let (sim, real): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.is_virtual());
        work.run(&sim, jobs);
        work.run(&real, 1);
        work.bar.finish_and_clear();
        let failed = work.failed.into_inner().expect("nothing panics with it");
        let written = report::write(&collect::study(&experiment, &all, &folder)?, &folder.0)?;
        if let Some(page) = written.first() {
            note!("the report: {}", page.display());
        }
        match failed.as_slice() {
            [] => Ok(()),
            [first, ..] => bail!("{} runs failed, the first: {first}", failed.len()),
        }
    }

    fn out_folder(&self) -> PathBuf {
        let name = self.file.file_stem().unwrap_or("experiment".as_ref());
        let default = || Path::new("out").join(name);
        self.out.clone().unwrap_or_else(default)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Task<'_> {
    fn is_virtual(&self) -> bool {
        self.cell.setting.engine == Engine::Sim
    }
}

/// The runs that are not there yet, seed by seed: so that the first figures of all cells come
/// early.
fn missing<'a>(
    experiment: &Experiment,
    chosen: &'a Cells,
    costs: &[Duration],
    folder: &Folder,
) -> Result<Vec<Task<'a>>> {
    let mut tasks = Vec::new();
    for seed in &experiment.seeds {
        for (cell, cost) in chosen.cells.iter().zip(costs) {
            let there = folder.read(&cell.id, *seed)?;
            let made = Made::with(&cell.setting);
            match there {
                Some(kept) if kept.made == made => continue,
                Some(kept) => {
                    let what = if kept.made.dogwild == made.dogwild {
                        "other settings"
                    } else {
                        "another build"
                    };
                    note!("{} seed {seed} is of {what}: it is made again", cell.id);
                }
                None => {}
            }
            tasks.push(Task {
                cell,
                seed: *seed,
                cost: *cost,
            });
        }
    }
    Ok(tasks)
}

fn announce(experiment: &Experiment, chosen: &Cells, tasks: &[Task<'_>], jobs: usize) {
    progress!("{}", experiment.title);
    for cell in &chosen.cells {
        let mut own = tasks.iter().filter(|task| task.cell.id == cell.id);
        let (left, seeds) = (own.clone().count(), experiment.seeds.len());
        let each = own.next().map_or(String::new(), |task| {
            format!(", about {} each", told(task.cost))
        });
        progress!("  {}: {left} of {seeds} runs to make{each}", cell.id);
    }
    let (sim, real): (Vec<&Task<'_>>, Vec<_>) = tasks.iter().partition(|task| task.is_virtual());
    let time = |tasks: &[&Task<'_>]| -> Duration { tasks.iter().map(|task| task.cost).sum() };
    let in_all = time(&sim) / jobs as u32 + time(&real);
    progress!(
        "{} runs in virtual time, {jobs} at a time, {} in real time, one by one: about {}",
        sim.len(),
        real.len(),
        told(in_all)
    );
}

/// What makes runs, and what has come of it.
struct Work<'a> {
    folder: &'a Folder,
    files: &'a Files,
    /// Runs to make.
    all: usize,
    bar: ProgressBar,
    done: AtomicUsize,
    /// What failed, in words.
    failed: Mutex<Vec<String>>,
}

impl Work<'_> {
    /// Makes these, so many at a time.
    fn run(&self, tasks: &[&Task<'_>], jobs: usize) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..jobs.min(tasks.len()) {
                scope.spawn(|| {
                    while let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) {
                        self.one(task);
                    }
                });
            }
        });
    }

    /// Makes one run, keeps it, and says what came of it.
    fn one(&self, task: &Task<'_>) {
        let what = format!("{} seed {}", task.cell.id, task.seed);
        self.bar.set_message(what.clone());
        let line = match self.make(task) {
            Ok(run) => run.line(),
            Err(error) => {
                let line = format!("{error:#}");
                let mut failed = self.failed.lock().expect("nothing panics with it");
                failed.push(format!("{what}: {line}"));
                line
            }
        };
        let number = self.done.fetch_add(1, Relaxed) + 1;
        let all = self.all;
        self.bar
            .suspend(|| progress!("{number}/{all} {what}: {line}"));
    }

    fn make(&self, task: &Task<'_>) -> Result<Run> {
        let setting = &task.cell.setting;
        let share = Share::new(&self.bar, task.cost, setting.stop.iterations);
        let run = engine::run(setting, self.files, task.seed, &|done| share.tell(done));
        share.finish();
        let kept = Kept {
            made: Made::with(&task.cell.setting),
            run: run?,
        };
        self.folder
            .write(&task.cell.id, &kept)
            .context("the run is lost")?;
        Ok(kept.run)
    }
}

/// One run's share of the bar.
struct Share<'a> {
    bar: &'a ProgressBar,
    /// Of the bar, for the whole run.
    whole: u64,
    /// Where the run ends at the latest.
    iterations: u64,
    /// Of the bar, so far.
    told: AtomicU64,
}

impl<'a> Share<'a> {
    fn new(bar: &'a ProgressBar, cost: Duration, iterations: u64) -> Self {
        Self {
            bar,
            whole: cost.as_millis() as u64,
            iterations,
            told: AtomicU64::new(0),
        }
    }

    /// The run has done so many iterations. It never goes back: processes count apart.
    fn tell(&self, done: u64) {
        let share = done as f64 / self.iterations as f64;
        self.advance((self.whole as f64 * share.min(1.0)) as u64);
    }

    /// The run has ended, wherever it stopped.
    fn finish(&self) {
        self.advance(self.whole);
    }

    fn advance(&self, now: u64) {
        let before = self.told.fetch_max(now, Relaxed);
        self.bar.inc(now.saturating_sub(before));
    }
}

/// What is left to do, in milliseconds of a core.
fn bar(total: Duration) -> ProgressBar {
    if !out::shows_bars() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total.as_millis() as u64);
    let style = "{bar:30} {percent} %  {elapsed}, {eta} left  {wide_msg}";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_moves_the_bar_as_far_as_it_has_come() {
        let bar = ProgressBar::hidden();
        let share = Share::new(&bar, Duration::from_secs(60), 200);
        let after = |done: u64| {
            share.tell(done);
            bar.position()
        };
        // A quarter; a process that counts less takes nothing back; more than all is all.
        assert_eq!(
            [50, 20, 100, 1_000].map(after),
            [15_000, 15_000, 30_000, 60_000]
        );
        share.finish();
        assert_eq!(bar.position(), 60_000);
        // One that stops early leaves nothing undone.
        let early = Share::new(&bar, Duration::from_secs(10), 200);
        early.tell(20);
        early.finish();
        assert_eq!(bar.position(), 70_000);
    }
}
