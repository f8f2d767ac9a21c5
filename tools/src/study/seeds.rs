//! The same training with several seeds: median and range.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use dogwild::watch::screen::{self, Columns};

use crate::report::spread::Spread;
use crate::results::{Ended, Run};

/// Trains with each seed, as many at a time as there are cores, and shows what came of it.
pub(crate) fn run(
    seeds: Range<u64>,
    target: Option<f64>,
    train: impl Fn(u64) -> Result<Run> + Sync,
) -> Result<()> {
    let runs = all(seeds, train)?;
    let diverged = runs.iter().filter(|run| run.ended == Ended::Diverged);
    let diverged: Vec<String> = diverged
        .map(|run| format!("{} at iteration {}", run.seed, run.iterations))
        .collect();
    dogwild_lab::say!("{}", table(&runs, target).fold(screen::width()));
    if diverged.is_empty() {
        Ok(())
    } else {
        bail!("diverged: seed {}", diverged.join(", "))
    }
}

fn all(seeds: Range<u64>, train: impl Fn(u64) -> Result<Run> + Sync) -> Result<Vec<Run>> {
    let next = AtomicU64::new(seeds.start);
    let done = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let run = train(seed);
                    match &run {
                        Ok(run) => dogwild_lab::progress!("seed {seed}: {}", run.line()),
                        Err(error) => dogwild_lab::note!("seed {seed}: {error:#}"),
                    }
                    let mut done = done.lock().expect("no thread panics with it");
                    done.push((seed, run));
                }
            });
        }
    });
    let mut runs = done.into_inner().expect("no thread panics with it");
    runs.sort_by_key(|(seed, _)| *seed);
    runs.into_iter().map(|(_, run)| run).collect()
}

/// A row for each tested iteration that all runs have, and one for the target.
fn table(runs: &[Run], target: Option<f64>) -> Columns {
    let mut table = Columns::boxed(["iterations", "median", "lowest to highest", "seeds"]);
    let most = runs.iter().map(|run| run.points.len()).max().unwrap_or(0);
    for at in 0..most {
        let there: Vec<_> = runs.iter().filter_map(|run| run.points.get(at)).collect();
        let accuracies = there.iter().map(|point| point.accuracy * 100.0).collect();
        let Some((low, median, high)) = spread(accuracies) else {
            continue;
        };
        table.row([
            there[0].iterations.to_string(),
            format!("{median:.2} %"),
            format!("{low:.2} to {high:.2}"),
            there.len().to_string(),
        ]);
    }
    let reached = runs.iter().filter_map(|run| run.reached(target?));
    let reached: Vec<_> = reached.collect();
    let its = reached.iter().map(|point| point.iterations as f64);
    let times = reached.iter().map(|point| point.seconds).collect();
    if let (Some((low, median, high)), Some((quick, s, slow))) =
        (spread(its.collect()), spread(times))
    {
        table.row([
            "to the target".to_owned(),
            format!("{median} ({s:.1} s)"),
            format!("{low} to {high} ({quick:.1} to {slow:.1} s)"),
            reached.len().to_string(),
        ]);
    }
    table
}

/// Least, median and most; `None`: there are no values.
pub(crate) fn spread(values: Vec<f64>) -> Option<(f64, f64, f64)> {
    Spread::of(values).map(|spread| (spread.least, spread.median, spread.most))
}
