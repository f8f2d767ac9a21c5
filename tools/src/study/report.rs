//! The report of an experiment: one page, and the numbers as CSV and JSON.
//!
//! Invariants: the page needs no other file and no network. The same study gives the same bytes:
//! nothing here knows the time or the machine.

mod curves;
mod figures;
mod ink;
pub(crate) mod input;
mod json;
mod page;
mod plot;
mod rows;
mod scale;
pub(crate) mod spread;
mod summary;
mod tables;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::input::Study;
use crate::results::write_whole;

/// Writes the report into `folder` and tells its files, the page first.
///
/// # Errors
/// A file cannot be written or a figure cannot be drawn.
pub(crate) fn write(study: &Study, folder: &Path) -> Result<Vec<PathBuf>> {
    let cells = study.summaries();
    let page = page::page(study, &cells)
        .with_context(|| format!("cannot make the page of {:?}", study.title))?;
    let files = [
        ("report.html", page.into_bytes()),
        ("runs.csv", rows::runs(study)?),
        ("points.csv", rows::points(study)?),
        ("results.json", json::all(study, &cells)?),
    ];
    let mut paths = Vec::new();
    for (name, bytes) in files {
        let path = folder.join(name);
        write_whole(&path, &bytes)?;
        paths.push(path);
    }
    Ok(paths)
}
