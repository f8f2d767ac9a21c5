//! What a job leaves in its `--out` folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use serde::Serialize;

use super::outcome::Outcome;
use super::resume::Resume;
use super::summary::{NodeSummary, Summary};
use super::train::TrainPlan;
use super::whole::write_whole;
use crate::node::{TestResult, Tester, Transforms};
use crate::snapshot::SaveError;
use crate::solver::data::DataSet;
use crate::watch::curve::{Curve, CurveWriter, read_rows};
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
    crate::snapshot::save(&path, shared.manifest(), shared.view(), metadata.into())
}

/// Pictures of the last test; 0: all.
pub(super) fn test_images(outcome: Outcome) -> usize {
    match outcome {
        // A user who interrupts waits for the prompt, and a failure for being told: a smaller test.
        Outcome::Interrupted(_) | Outcome::Failed | Outcome::Diverged => 1000,
        _ => 0,
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
    let most = test_images(outcome);
    let transform = Transforms::of(&plan.spec, &set.train).test;
    let mut tester = Tester::new(&plan.spec, transform, set.test, most)?;
    let go_on = AtomicBool::new(false);
    let mut per_node = Vec::new();
    let mut same: Option<TestResult> = None;
    for (node, shared) in (0..).zip(nodes) {
        // Equal weights give equal answers: test once.
        let found = match same {
            Some(found) if replicas_identical => found,
            _ => tester
                .test(shared.view(), &go_on)?
                .context("test stopped")?,
        };
        same = Some(found);
        per_node.push(NodeSummary::read(node, shared, train_s, found));
    }
    Ok(Summary {
        dogwild: env!("CARGO_PKG_VERSION").into(),
        model: plan.model.clone(),
        data: plan.data.to_string(),
        weights: nodes.first().map_or(0, SharedWeights::used),
        nodes: plan.nodes,
        solvers_per_node: plan.solvers,
        transport: plan.transport.clone(),
        lab: plan.lab.is_some(),
        deltas: plan.deltas.clone(),
        rate_bytes_per_s: plan.rate_bytes_per_s,
        seed: plan.seed,
        ended_by: outcome.word().into(),
        train_s,
        iterations: per_node.iter().map(|node| node.iterations).sum(),
        resumed_from_iteration: plan.resume.as_ref().map(Resume::iterations),
        replicas_identical,
        restarts,
        per_node,
    })
}

/// Where the solvers of a node that test write their rows.
pub(super) fn node_curve(out: &Path, node: u16) -> PathBuf {
    out.join(format!("node{node}-curve.csv"))
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
    let mut rows = Vec::new();
    let files = (0..nodes).map(|node| node_curve(out, node));
    let files: Vec<PathBuf> = files.filter(|path| path.exists()).collect();
    let whole = out.join("curve.csv");
    // A resumed job goes on with the curve of the run before.
    for path in files.iter().chain(whole.exists().then_some(&whole)) {
        rows.extend(read_rows(path)?);
    }
    rows.sort_by_key(|row| (row.iteration, row.node));
    write_whole(&whole, |path| {
        let mut curve = CurveWriter::append(path)?;
        rows.iter().try_for_each(|row| curve.write(row))?;
        Ok(())
    })?;
    write_whole(&out.join("curve.svg"), |path| {
        Ok(Curve::learning(title, &rows).write_svg(path)?)
    })?;
    for path in files {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
