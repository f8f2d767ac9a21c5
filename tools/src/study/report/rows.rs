//! All runs, and all tests of them, as CSV.
//!
//! Invariant: a number that is not known is an empty field.

use anyhow::Result;

use super::input::{CellRuns, Study};
use super::summary::FIGURES;
use crate::results::{Ended, Point, Run};

const TEST: [&str; 6] = [
    "iterations",
    "samples",
    "seconds",
    "bytes",
    "loss",
    "accuracy",
];
const COST: [&str; 4] = ["iterations", "samples", "seconds", "bytes"];

/// One row for each run.
///
/// # Errors
/// The fields of a row cannot be written.
pub(crate) fn runs(study: &Study) -> Result<Vec<u8>> {
    let mut head = head(study);
    head.extend(["ended", "final_accuracy"].map(str::to_owned));
    for at in ["end", "target"] {
        head.extend(COST.map(|name| format!("{at}_{name}")));
    }
    head.extend(FIGURES.iter().map(|known| known.name.to_owned()));
    let rows = all(study).map(|(cell, run)| {
        let mut row = start(study, cell, run);
        row.push(ended(run.ended).to_owned());
        row.push(or_empty(run.final_accuracy()));
        row.extend(cost(run.points.last()));
        row.extend(cost(study.target.and_then(|target| run.reached(target))));
        row.extend(
            FIGURES
                .iter()
                .map(|known| or_empty((known.get)(&run.figures))),
        );
        row
    });
    written(&head, rows)
}

/// One row for each test.
///
/// # Errors
/// The fields of a row cannot be written.
pub(crate) fn points(study: &Study) -> Result<Vec<u8>> {
    let mut head = head(study);
    head.extend(TEST.map(str::to_owned));
    let rows = all(study).flat_map(|(cell, run)| {
        run.points.iter().map(move |point| {
            let mut row = start(study, cell, run);
            row.extend(cost(Some(point)));
            row.push(or_empty(point.loss));
            row.push(or_empty(Some(point.accuracy)));
            row
        })
    });
    written(&head, rows)
}

fn all(study: &Study) -> impl Iterator<Item = (&CellRuns, &Run)> {
    study
        .cells
        .iter()
        .flat_map(|cell| cell.runs.iter().map(move |run| (cell, run)))
}

fn head(study: &Study) -> Vec<String> {
    let mut head = vec!["cell".to_owned(), "way".to_owned()];
    head.extend(study.axes.iter().cloned());
    head.push("seed".to_owned());
    head
}

fn start(study: &Study, cell: &CellRuns, run: &Run) -> Vec<String> {
    let way = study.ways.get(cell.way).cloned().unwrap_or_default();
    let mut row = vec![cell.id.clone(), way];
    let label = |axis: usize| {
        cell.at
            .get(axis)
            .map_or_else(String::new, |at| at.label.clone())
    };
    row.extend((0..study.axes.len()).map(label));
    row.push(run.seed.to_string());
    row
}

fn cost(point: Option<&Point>) -> [String; 4] {
    let Some(point) = point else {
        return [const { String::new() }; 4];
    };
    [
        point.iterations.to_string(),
        point.samples.to_string(),
        or_empty(Some(point.seconds)),
        point
            .bytes
            .map_or_else(String::new, |bytes| bytes.to_string()),
    ]
}

fn or_empty(value: Option<f64>) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or_else(String::new, |value| value.to_string())
}

/// How a run ended, as the files write it.
fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Done => "done",
        Ended::Target => "target",
        Ended::Diverged => "diverged",
    }
}

fn written(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(head)?;
    for row in rows {
        writer.write_record(row)?;
    }
    writer
        .into_inner()
        .map_err(|error| error.into_error().into())
}
