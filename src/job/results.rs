//! What a job leaves in its `--out` folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::curves::{node_curves, rows};
use super::summary::Summary;
use super::whole::write_whole;
use crate::node::Positions;
use crate::snapshot::SaveError;
use crate::watch::curve::{Curve, CurveWriter};
use crate::weights::SharedWeights;

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
