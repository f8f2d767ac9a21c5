//! `dogwild-study report`: the runs of a folder, put together for the report.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use dogwild::job::Host;
use dogwild_lab::note;

use crate::experiment::cells::{Cells, cells};
use crate::experiment::{Experiment, read};
use crate::report;
use crate::report::input::{CellRuns, Study};
use crate::results::{Folder, version};

/// Arguments of `dogwild-study report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that `run` has written
    folder: PathBuf,
}

impl Args {
    /// Writes the report anew from the runs that there are.
    pub(crate) fn run(self) -> Result<()> {
        let folder = Folder(self.folder);
        let (experiment, all) = experiment_of(&folder)?;
        let written = report::write(&study(&experiment, &all, &folder)?, &folder.0)?;
        for path in written {
            note!("{}", path.display());
        }
        Ok(())
    }
}

/// The experiment whose results a folder holds.
///
/// # Errors
/// The folder holds none.
pub(crate) fn experiment_of(folder: &Folder) -> Result<(Experiment, Cells)> {
    let file = folder.0.join("experiment.toml");
    ensure!(
        file.is_file(),
        "{} holds no results: it has no experiment.toml; name the folder that `run` wrote",
        folder.0.display()
    );
    let experiment = read(&file)?;
    let all = cells(&experiment).with_context(|| format!("the experiment {}", file.display()))?;
    Ok((experiment, all))
}

/// All of a study. Runs that were made with other settings than the file has now are left out.
///
/// # Errors
/// A file of results is none.
pub(crate) fn study(experiment: &Experiment, all: &Cells, folder: &Folder) -> Result<Study> {
    let mut made_by = Vec::new();
    let mut cells = Vec::new();
    for cell in &all.cells {
        let mut runs = Vec::new();
        for seed in &experiment.seeds {
            let Some(kept) = folder.read(&cell.id, *seed)? else {
                continue;
            };
            if kept.made.setting != cell.setting {
                note!("{} seed {seed} is of other settings and left out", cell.id);
                continue;
            }
            if !made_by.contains(&kept.made.dogwild) {
                made_by.push(kept.made.dogwild);
            }
            runs.push(kept.run);
        }
        cells.push(CellRuns {
            id: cell.id.clone(),
            way: cell.way,
            at: cell.at.clone(),
            seeds: experiment.seeds.clone(),
            runs,
        });
    }
    Ok(Study {
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        engine: engines(all),
        paper: experiment.paper.clone(),
        target: experiment.base.stop.target,
        figures: experiment.figures.clone(),
        axes: all.axes.clone(),
        ways: all.ways.clone(),
        cells,
        source: experiment.source.clone(),
        provenance: provenance(&made_by),
    })
}

/// The engines of all cells, in words.
fn engines(all: &Cells) -> String {
    let mut known = Vec::new();
    for cell in &all.cells {
        let what = cell.setting.engine.describe();
        if !known.contains(&what) {
            known.push(what);
        }
    }
    known.join("; ")
}

/// What ran where. No times: the same runs give the same report.
fn provenance(made_by: &[String]) -> Vec<(String, String)> {
    let host = Host::here();
    let gib = host.memory_bytes as f64 / f64::from(1 << 30);
    let rows = [
        ("runs made by dogwild", made_by.join("; ")),
        ("report made by dogwild", version()),
        ("command", "dogwild-study run FILE".to_owned()),
        ("machine", host.name),
        (
            "processor",
            format!("{}, {} cores", host.processor, host.cores),
        ),
        ("memory", format!("{gib:.0} GiB")),
        ("kernel", host.kernel),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}
