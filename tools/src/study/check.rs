//! `dogwild-study check` and `list`: what there is to run, and what it will cost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dogwild::watch::screen::{self, Columns};

use crate::cost::{Cost, told};
use crate::engine::Files;
use crate::experiment::cells::{Cell, Cells, cells};
use crate::experiment::{Engine, Experiment, read};

/// Arguments of `dogwild-study check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The experiment
    file: PathBuf,
}

/// Arguments of `dogwild-study list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The folder of experiments
    #[arg(default_value = "experiments")]
    folder: PathBuf,
}

impl CheckArgs {
    /// Reads the experiment and all that it names, and shows its cells.
    pub(crate) fn run(self) -> Result<()> {
        let experiment = read(&self.file)?;
        let all = cells(&experiment)?;
        let files = Files::in_folder(folder_of(&self.file));
        let costs = costs(&all, &files)?;
        dogwild_lab::say!("{}", table(&experiment, &all, &costs).fold(screen::width()));
        let runs = all.cells.len() * experiment.seeds.len();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let seeds = experiment.seeds.len() as u32;
        let total = costs.iter().sum::<Duration>() * seeds;
        let time = wall(&all, &costs, cores) * seeds;
        dogwild_lab::say!(
            "{} cells with {} seeds: {runs} runs, about {}; {} with --jobs {cores}",
            all.cells.len(),
            experiment.seeds.len(),
            told(total),
            told(time)
        );
        Ok(())
    }
}

/// What cells take with so many runs at a time: those in real time go one by one.
fn wall(all: &Cells, costs: &[Duration], jobs: usize) -> Duration {
    let times = all.cells.iter().zip(costs);
    times
        .map(|(cell, cost)| match cell.setting.engine {
            Engine::Sim => *cost / jobs as u32,
            _ => *cost,
        })
        .sum()
}

/// The folder that a file's relative names are from.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// What a run of each cell takes.
///
/// # Errors
/// A model, its pictures or a recording cannot be used; in which cell.
pub(crate) fn costs(all: &Cells, files: &Files) -> Result<Vec<Duration>> {
    let mut known: Vec<(&crate::experiment::Model, Cost)> = Vec::new();
    let mut costs = Vec::new();
    for cell in &all.cells {
        if let Some(takes_s) = cell.setting.takes_s {
            costs.push(Duration::from_secs_f64(takes_s));
            continue;
        }
        let model = &cell.setting.model;
        let there = known.iter().find(|(other, _)| *other == model);
        let cost = match there {
            Some((_, cost)) => *cost,
            None => {
                let cost = Cost::measure(&cell.setting, files);
                let cost = cost.with_context(|| format!("the cell {}", cell.id))?;
                known.push((model, cost));
                cost
            }
        };
        if let Some(name) = &cell.setting.nodes.step_recording {
            files
                .recording(name)
                .with_context(|| format!("the cell {}", cell.id))?;
        }
        costs.push(cost.of(&cell.setting));
    }
    Ok(costs)
}

fn table(experiment: &Experiment, all: &Cells, costs: &[Duration]) -> Columns {
    let heads = ["cell", "nodes", "solvers", "iterations", "a run takes"];
    let mut table = Columns::boxed(heads.map(str::to_owned));
    for (cell, cost) in all.cells.iter().zip(costs) {
        let Cell { id, setting, .. } = cell;
        table.row([
            id.clone(),
            setting.nodes.count.to_string(),
            setting.nodes.solvers.to_string(),
            setting.stop.iterations.to_string(),
            told(*cost),
        ]);
    }
    dogwild_lab::say!("{}", experiment.title);
    table
}

impl ListArgs {
    /// Shows the experiments of a folder.
    pub(crate) fn run(self) -> Result<()> {
        let folder = &self.folder;
        let entries = std::fs::read_dir(folder)
            .with_context(|| format!("cannot read the folder {}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
            .collect();
        files.sort();
        if files.is_empty() {
            bail!("no experiment (*.toml) in the folder {}", folder.display());
        }
        let mut table = Columns::boxed(["experiment", "what it is", "cells x seeds"]);
        for file in files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let (what, size) = match read(&file).and_then(|one| Ok((cells(&one)?, one))) {
                Ok((all, one)) => (
                    one.title.clone(),
                    format!("{} x {}", all.cells.len(), one.seeds.len()),
                ),
                Err(error) => (format!("{error:#}"), "wrong".to_owned()),
            };
            table.row([name.into_owned(), what, size]);
        }
        dogwild_lab::say!("{}", table.fold(screen::width()));
        Ok(())
    }
}
