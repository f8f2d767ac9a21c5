//! What a job leaves in its `--out` folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result};
use serde::Serialize;

use super::summary::{NodeSummary, Summary};
use super::train::TrainPlan;
use crate::node::{TestResult, Tester, Transforms};
use crate::solver::data::DataSet;
use crate::watch::curve::{Curve, CurveWriter, read_rows};
use crate::weights::SharedWeights;

/// Writes the weights of `shared` to the folder `out`.
pub(super) fn save_weights(out: &Path, model: &str, shared: &SharedWeights) -> Result<()> {
    let metadata = [
        ("model".to_owned(), model.to_owned()),
        (
            "iterations".to_owned(),
            shared.globals().iterations().to_string(),
        ),
    ];
    let path = out.join("weights.safetensors");
    crate::snapshot::save(&path, shared.manifest(), shared.view(), metadata.into())?;
    Ok(())
}

pub(super) fn summarise(
    plan: &TrainPlan,
    nodes: &[SharedWeights],
    set: DataSet,
    stop: &AtomicBool,
    train_s: f64,
    restarts: u32,
    replicas_identical: bool,
) -> Result<Summary> {
    let interrupted = stop.load(Relaxed);
    let by_accuracy = nodes
        .iter()
        .any(|shared| shared.globals().stop.load(Relaxed) != 0);
    // Whoever interrupts waits for the prompt: a smaller test, done before anybody is impatient.
    let most = if interrupted { 1000 } else { 0 };
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
        ended_by: match (interrupted, by_accuracy) {
            (true, _) => "interrupted",
            (_, true) => "target_accuracy",
            _ => "iterations",
        }
        .into(),
        train_s,
        iterations: per_node.iter().map(|node| node.iterations).sum(),
        replicas_identical,
        restarts,
        per_node,
    })
}

/// Where the solvers of a node that test write their rows.
pub(super) fn node_curve(out: &Path, node: u16) -> PathBuf {
    out.join(format!("node{node}-curve.csv"))
}

/// Removes what an earlier job left in `out`, so that nothing of it is taken for a result of this one.
pub(super) fn remove_old_results(out: &Path) -> Result<()> {
    for old in fs::read_dir(out)?.flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        let ours = ["node", "worker", "server", "coordinator"]
            .iter()
            .any(|kind| name.starts_with(kind))
            && (name.ends_with(".log")
                || name.ends_with("-curve.csv")
                || name.ends_with("-traffic.json"));
        if ours
            || [
                "curve.csv",
                "curve.svg",
                "summary.json",
                "weights.safetensors",
            ]
            .contains(&name.as_str())
        {
            fs::remove_file(old.path())
                .with_context(|| format!("cannot replace {}", old.path().display()))?;
        }
    }
    Ok(())
}

/// Writes the summary, and the rows of all nodes as one curve with its picture.
pub(super) fn write_results(
    out: &Path,
    nodes: u16,
    title: &str,
    summary: &impl Serialize,
) -> Result<()> {
    let path = out.join("summary.json");
    fs::write(&path, serde_json::to_string_pretty(summary)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut rows = Vec::new();
    for node in 0..nodes {
        let path = node_curve(out, node);
        if path.exists() {
            rows.extend(read_rows(&path)?);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    rows.sort_by_key(|row| (row.iteration, row.node));
    let mut curve = CurveWriter::append(&out.join("curve.csv"))?;
    for row in &rows {
        curve.write(row)?;
    }
    Curve::accuracy(title, &rows).write_svg(&out.join("curve.svg"))?;
    Ok(())
}
