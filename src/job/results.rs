//! What a job leaves in its `--out` folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::common::{Common, Parts, Pictures};
use super::outcome::Outcome;
use super::resume::Resume;
use super::summary::{NodeSummary, Summary};
use super::train::TrainPlan;
use super::whole::write_whole;
use crate::node::{Positions, TestResult, Tester, Transforms};
use crate::snapshot::SaveError;
use crate::solver::data::DataSet;
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

pub(super) fn summarise(
    plan: &TrainPlan,
    nodes: &[SharedWeights],
    set: DataSet,
    outcome: Outcome,
    train_s: f64,
    restarts: u32,
    replicas_identical: bool,
) -> Result<Summary> {
    let common = Common::new(
        &plan.experiment,
        Parts {
            model: &plan.model,
            data: plan.data.to_string(),
            pictures: Pictures::of(&set),
            spec: &plan.spec,
            nodes: plan.nodes,
            target_accuracy: plan.target_accuracy,
            rows: &rows(&plan.out, plan.nodes)?,
        },
    );
    let transform = Transforms::of(&plan.spec, &set.train).test;
    let mut tester = Tester::new(&plan.spec, transform, set.test, 0)?;
    let time = last_tests(outcome).map(|time| time / u32::from(plan.nodes));
    let mut per_node = Vec::new();
    let mut same: Option<TestResult> = None;
    for (node, shared) in (0..).zip(nodes) {
        // Equal weights give equal answers: test once.
        let found = match same {
            Some(found) if replicas_identical => found,
            _ => tester.test_within(shared.view(), time)?,
        };
        same = Some(found);
        per_node.push(NodeSummary::read(node, shared, train_s, found));
    }
    Ok(Summary {
        common,
        weights: nodes.first().map_or(0, SharedWeights::used),
        nodes: plan.nodes,
        solvers_per_node: plan.solvers.clone(),
        transport: plan.transport.transport.name().to_owned(),
        lab: plan.lab.is_some(),
        deltas: plan.stream.deltas_name().to_owned(),
        rate_bytes_per_s: plan.stream.rate_bytes_per_s,
        seed: plan.seed,
        ended_by: outcome.word().into(),
        train_s,
        iterations: per_node.iter().map(|node| node.iterations).sum(),
        resumed_from_iteration: plan.resume.as_ref().map(Resume::iterations),
        replicas_identical,
        restarts,
        warnings: Vec::new(),
        per_node,
    })
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
pub(super) fn write_results(
    out: &Path,
    nodes: u16,
    title: &str,
    summary: &impl Serialize,
) -> Result<()> {
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
        Ok(Curve::learning(title, &rows).write_svg(path)?)
    })?;
    for path in node_curves(out, nodes) {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
