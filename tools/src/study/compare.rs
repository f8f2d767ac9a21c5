//! `dogwild-study compare`: the cells that two folders of results have in common.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use dogwild::watch::screen::{self, Columns};

use crate::collect::{experiment_of, study};
use crate::report::input::CellRuns;
use crate::report::spread::Spread;
use crate::results::{Folder, Run};

/// Arguments of `dogwild-study compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that `run` has written
    one: PathBuf,
    /// Another, of the same experiment: another engine, another build, another machine
    other: PathBuf,
}

/// What is compared of a cell.
struct Quantity {
    name: &'static str,
    decimals: usize,
    of: fn(&Run, Option<f64>) -> Option<f64>,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        name: "accuracy at the end, %",
        decimals: 2,
        of: |run, _| Some(run.final_accuracy()? * 100.0),
    },
    Quantity {
        name: "iterations to the target",
        decimals: 0,
        of: |run, target| Some(run.reached(target?)?.iterations as f64),
    },
    Quantity {
        name: "seconds to the target",
        decimals: 1,
        of: |run, target| Some(run.reached(target?)?.seconds),
    },
];

impl Args {
    /// Shows medians and ranges next to each other, and which ranges lie apart.
    pub(crate) fn run(self) -> Result<()> {
        let studies = [self.one, self.other].map(|path| {
            let folder = Folder(path);
            let (experiment, all) = experiment_of(&folder)?;
            study(&experiment, &all, &folder)
        });
        let [one, other] = studies;
        let (one, other) = (one?, other?);
        let heads = ["cell", "of its runs", "the first folder", "the second", ""];
        let mut table = Columns::boxed(heads.map(str::to_owned));
        let (mut rows, mut apart) = (0, 0);
        for cell in &one.cells {
            let same = |there: &&CellRuns| there.id == cell.id;
            let Some(there) = other.cells.iter().find(same) else {
                continue;
            };
            for quantity in &QUANTITIES {
                let spread = |cell: &CellRuns, target| {
                    let values = cell
                        .runs
                        .iter()
                        .filter_map(|run| (quantity.of)(run, target));
                    Spread::of(values)
                };
                let both = (spread(cell, one.target), spread(there, other.target));
                let (Some(first), Some(second)) = both else {
                    continue;
                };
                let overlap = first.least <= second.most && second.least <= first.most;
                (rows, apart) = (rows + 1, apart + usize::from(!overlap));
                table.row([
                    cell.id.clone(),
                    quantity.name.to_owned(),
                    first.text(quantity.decimals),
                    second.text(quantity.decimals),
                    if overlap { "" } else { "apart" }.to_owned(),
                ]);
            }
        }
        ensure!(
            rows > 0,
            "the folders have no cell in common of which both have runs"
        );
        dogwild_lab::say!("{}", table.fold(screen::width()));
        dogwild_lab::say!(
            "median (least to most) of the seeds; the ranges of {} of {rows} rows overlap",
            rows - apart
        );
        Ok(())
    }
}
