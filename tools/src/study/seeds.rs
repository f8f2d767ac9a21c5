//! The same training with several seeds: median and range.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, bail};
use dogwild::watch::screen::{self, Columns};

use crate::course::Course;

/// Trains with each seed, as many at a time as there are cores, and shows what came of it.
pub(crate) fn run(seeds: Range<u64>, train: impl Fn(u64) -> Result<Course> + Sync) -> Result<()> {
    let courses = all(seeds, train)?;
    let diverged = courses.iter().filter(|(_, c)| c.diverged.is_some());
    let diverged: Vec<String> = diverged
        .map(|(seed, c)| format!("{seed} at iteration {}", c.diverged.unwrap_or(0)))
        .collect();
    dogwild_lab::say!("{}", table(&courses).fold(screen::width()));
    if diverged.is_empty() {
        Ok(())
    } else {
        bail!("diverged: seed {}", diverged.join(", "))
    }
}

fn all(
    seeds: Range<u64>,
    train: impl Fn(u64) -> Result<Course> + Sync,
) -> Result<Vec<(u64, Course)>> {
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
                    let course = train(seed);
                    match &course {
                        Ok(course) => dogwild_lab::note!("seed {seed}: {}", last(course)),
                        Err(error) => dogwild_lab::note!("seed {seed}: {error:#}"),
                    }
                    done.lock()
                        .expect("no thread panics with it")
                        .push((seed, course));
                }
            });
        }
    });
    let mut courses = done.into_inner().expect("no thread panics with it");
    courses.sort_by_key(|(seed, _)| *seed);
    courses
        .into_iter()
        .map(|(seed, course)| Ok((seed, course?)))
        .collect()
}

fn last(course: &Course) -> String {
    match (course.diverged, course.points.last()) {
        (Some(at), _) => format!("diverged at iteration {at}"),
        (None, Some(point)) => point.to_string(),
        (None, None) => "no test".to_owned(),
    }
}

/// A row for each tested iteration that all courses have, and one for the target.
fn table(courses: &[(u64, Course)]) -> Columns {
    let mut table = Columns::boxed(["iterations", "median", "lowest to highest", "seeds"]);
    let most = courses
        .iter()
        .map(|(_, c)| c.points.len())
        .max()
        .unwrap_or(0);
    for at in 0..most {
        let there: Vec<_> = courses
            .iter()
            .filter_map(|(_, c)| c.points.get(at))
            .collect();
        let accuracies = there.iter().map(|point| point.accuracy * 100.0).collect();
        let Some((low, median, high)) = spread(accuracies) else {
            continue;
        };
        table.row([
            there[0].iteration.to_string(),
            format!("{median:.2} %"),
            format!("{low:.2} to {high:.2}"),
            there.len().to_string(),
        ]);
    }
    let reached: Vec<_> = courses.iter().filter_map(|(_, c)| c.reached()).collect();
    let its = reached.iter().map(|point| point.iteration as f64).collect();
    let times = reached.iter().map(|point| point.s).collect();
    if let (Some((low, median, high)), Some((quick, s, slow))) = (spread(its), spread(times)) {
        table.row([
            "to the target".to_owned(),
            format!("{median} ({s:.1} s)"),
            format!("{low} to {high} ({quick:.1} to {slow:.1} s)"),
            reached.len().to_string(),
        ]);
    }
    table
}

/// Least, median (the lower one of two) and most; `None`: there are no values.
pub(crate) fn spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let median = *values.get(values.len().saturating_sub(1) / 2)?;
    Some((*values.first()?, median, *values.last()?))
}
