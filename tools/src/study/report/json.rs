//! The whole study as JSON: each run, and median and range of each cell.
//!
//! Invariant: the order of keys depends on nothing but the study.

use anyhow::Result;
use serde::Serialize;

use super::input::{AxisValue, Paper, Study};
use super::spread::Spread;
use super::summary::{FIGURES, Summary};
use crate::results::Run;

#[derive(Serialize)]
struct All<'a> {
    title: &'a str,
    question: Option<&'a str>,
    engine: &'a str,
    target: Option<f64>,
    axes: &'a [String],
    ways: &'a [String],
    paper: Option<&'a Paper>,
    cells: Vec<Cell<'a>>,
    provenance: Vec<[&'a str; 2]>,
    source: &'a str,
}

#[derive(Serialize)]
struct Cell<'a> {
    id: &'a str,
    way: &'a str,
    at: Vec<At<'a>>,
    seeds: &'a [u64],
    missing: Vec<u64>,
    diverged: usize,
    reached: Option<usize>,
    final_accuracy: Option<Spread>,
    to_target: ToTarget,
    figures: serde_json::Map<String, serde_json::Value>,
    runs: &'a [Run],
}

#[derive(Serialize)]
struct At<'a> {
    axis: &'a str,
    label: &'a str,
    number: Option<f64>,
}

#[derive(Serialize)]
struct ToTarget {
    iterations: Option<Spread>,
    samples: Option<Spread>,
    seconds: Option<Spread>,
    bytes: Option<Spread>,
}

/// The file.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn all(study: &Study, cells: &[Summary<'_>]) -> Result<Vec<u8>> {
    let provenance = study.provenance.iter();
    let all = All {
        title: &study.title,
        question: study.question.as_deref(),
        engine: &study.engine,
        target: study.target,
        axes: &study.axes,
        ways: &study.ways,
        paper: study.paper.as_ref(),
        cells: cells
            .iter()
            .map(|cell| of(study, cell))
            .collect::<Result<_>>()?,
        provenance: provenance
            .map(|(name, value)| [name.as_str(), value.as_str()])
            .collect(),
        source: &study.source,
    };
    let mut bytes = serde_json::to_vec_pretty(&all)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn of<'a>(study: &'a Study, summary: &'a Summary<'_>) -> Result<Cell<'a>> {
    let cell = summary.cell;
    let mut figures = serde_json::Map::new();
    for known in &FIGURES {
        if let Some(spread) = summary.figure(known) {
            figures.insert(known.name.to_owned(), serde_json::to_value(spread)?);
        }
    }
    let at = study.axes.iter().zip(&cell.at);
    Ok(Cell {
        id: &cell.id,
        way: study.ways.get(cell.way).map_or("", String::as_str),
        at: at
            .map(|(axis, AxisValue { label, number })| At {
                axis,
                label,
                number: *number,
            })
            .collect(),
        seeds: &cell.seeds,
        missing: summary.missing.clone(),
        diverged: summary.diverged,
        reached: study.target.map(|_| summary.reached),
        final_accuracy: summary.accuracy,
        to_target: ToTarget {
            iterations: summary.iterations,
            samples: summary.samples,
            seconds: summary.seconds,
            bytes: summary.bytes,
        },
        figures,
        runs: &cell.runs,
    })
}
