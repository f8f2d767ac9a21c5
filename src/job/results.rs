//! What a job leaves in its `--out` folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::outcome::Outcome;
use super::summary::Summary;
use super::whole::write_whole;
use crate::node::Positions;
use crate::snapshot::SaveError;
use crate::watch::curve::{Curve, CurveRow, CurveWriter, read_rows};
use crate::weights::SharedWeights;

/// Time of all tests at the end of a job that did not end by itself: its user waits for the prompt.
const LAST_TESTS: Duration = Duration::from_millis(500);

/// Writes the weights of `shared` to the folder `out`.
pub(super) fn save_weights(
    out: &Path,
    model: &str,
    shared: &SharedWeights,
) -> Result<(), SaveError> {
    let metadata = [
        ("model".to_owned(), model.to_owned()),
        (
            "iterations".to_owned(),
            shared.globals().iterations().to_string(),
        ),
    ];
    let path = out.join("weights.safetensors");
    let mut positions = Positions::default();
    let weights = positions.of(shared);
    crate::snapshot::save(&path, shared.manifest(), weights, metadata.into())
}

/// Time for all tests at the end; none: as long as they take, on the whole test set.
pub(super) fn last_tests(outcome: Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Interrupted(_) | Outcome::Failed | Outcome::Diverged => Some(LAST_TESTS),
        _ => None,
    }
}

/// Where the solvers of a node that test write their rows.
pub(super) fn node_curve(out: &Path, node: u16) -> PathBuf {
    out.join(format!("node{node}-curve.csv"))
}

fn node_curves(out: &Path, nodes: u16) -> impl Iterator<Item = PathBuf> {
    let files = (0..nodes).map(move |node| node_curve(out, node));
    files.filter(|path| path.exists())
}

/// The rows of all nodes of a job, in order; a resumed job goes on with the curve of the run
/// before.
pub(super) fn rows(out: &Path, nodes: u16) -> Result<Vec<CurveRow>> {
    let whole = Some(out.join("curve.csv")).filter(|path| path.exists());
    let mut rows = Vec::new();
    for path in node_curves(out, nodes).chain(whole) {
        rows.extend(read_rows(&path)?);
    }
    rows.sort_by_key(|row| (row.iteration, row.node));
    Ok(rows)
}

/// Writes the summary, and the rows of all nodes as one curve with its picture.
pub(super) fn write_results(out: &Path, summary: &Summary) -> Result<()> {
    let nodes = summary.path.nodes();
    write_whole(&out.join("summary.json"), |path| {
        Ok(fs::write(
            path,
            serde_json::to_string_pretty(summary)? + "\n",
        )?)
    })?;
    let whole = out.join("curve.csv");
    let rows = rows(out, nodes)?;
    write_whole(&whole, |path| {
        let mut curve = CurveWriter::append(path)?;
        rows.iter().try_for_each(|row| curve.write(row))?;
        Ok(())
    })?;
    write_whole(&out.join("curve.svg"), |path| {
        Ok(Curve::learning(&summary.title(), &rows).write_svg(path)?)
    })?;
    for path in node_curves(out, nodes) {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
