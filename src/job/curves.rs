//! The learning curves of a job while it runs: a file of rows for each node.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::watch::curve::{CurveRow, read_rows};

/// Where the solvers of a node that test write their rows.
pub(super) fn node_curve(out: &Path, node: u16) -> PathBuf {
    out.join(format!("node{node}-curve.csv"))
}

/// Those of the nodes that have written one.
pub(super) fn node_curves(out: &Path, nodes: u16) -> impl Iterator<Item = PathBuf> {
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
