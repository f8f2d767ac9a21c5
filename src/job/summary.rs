//! What a finished job reports: `summary.json`, and the table on the terminal.
//!
//! Every field is documented in `docs/reference/summary-json.md`; units are in the names.

use anyhow::{Context, Result};
use serde::Serialize;

use super::common::{Common, Pictures};
use super::outcome::Ending;
use super::plan::{JobPlan, PlanOf, PoseidonPlan, StreamPlan};
use super::poseidon_summary::PoseidonSummary;
use super::stream_summary::StreamSummary;
use super::title::title;
use super::warnings::Warning;
use crate::solver::data::DataSet;
use crate::watch::screen::Columns;
use crate::weights::SharedWeights;

/// A whole job.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What was run, and how fast it learnt.
    #[serde(flatten)]
    pub common: Common,
    /// Weights in the buffer.
    pub weights: usize,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Why the job ended: the word of its [`Outcome`](super::Outcome).
    pub ended_by: String,
    /// Time from the start of training to its end.
    pub train_s: f64,
    /// Iterations: of all solvers, those before a resumed snapshot included; of each worker on the
    /// reliable path.
    pub iterations: u64,
    /// Whether the weights of all nodes (workers) were equal at the end, bit for bit.
    pub replicas_identical: bool,
    /// Components that died and were started again; on the reliable path, times that all were.
    pub restarts: u32,
    /// What only the path of the job has.
    #[serde(flatten)]
    pub path: PathSummary,
}

/// The varying part of a summary.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum PathSummary {
    /// Nodes that streamed.
    Stream(StreamSummary),
    /// Workers and servers of the reliable path.
    Poseidon(PoseidonSummary),
}

impl PathSummary {
    /// Replicas of the weights: nodes, or workers.
    pub fn nodes(&self) -> u16 {
        match self {
            Self::Stream(own) => own.nodes,
            Self::Poseidon(own) => own.workers,
        }
    }

    /// The table for the terminal: one column per node or worker.
    pub fn table(&self) -> Columns {
        match self {
            Self::Stream(own) => own.table(),
            Self::Poseidon(own) => own.table(),
        }
    }

    /// Pictures of the last test.
    pub fn tested(&self) -> usize {
        match self {
            Self::Stream(own) => {
                let tested = own.per_node.iter().map(|node| node.test_images);
                tested.min().unwrap_or(0)
            }
            Self::Poseidon(own) => own.test_images,
        }
    }
}

impl Summary {
    /// Of a job that made `iterations`; its replicas are `nodes`.
    fn new(
        plan: &JobPlan,
        set: Pictures,
        ending: Ending,
        nodes: &[SharedWeights],
        iterations: u64,
        path: PathSummary,
    ) -> Result<Self> {
        Ok(Self {
            common: Common::new(plan, set, path.nodes())?,
            weights: nodes.first().map_or(0, SharedWeights::used),
            seed: plan.seed,
            ended_by: ending.outcome.word().into(),
            train_s: ending.train_s,
            iterations,
            replicas_identical: ending.replicas_identical,
            restarts: ending.restarts,
            path,
        })
    }

    /// What stands above the job's picture.
    pub fn title(&self) -> String {
        let how = match &self.path {
            PathSummary::Stream(own) => own.how(),
            PathSummary::Poseidon(own) => own.how(),
        };
        title(&self.common, &how)
    }
}

/// Of a job whose nodes streamed.
///
/// # Errors
/// Its model cannot be tested on `set`, or the rows of its nodes cannot be read.
pub(super) fn of_stream(
    plan: PlanOf<'_, StreamPlan>,
    nodes: &[SharedWeights],
    set: DataSet,
    ending: Ending,
    warnings: Vec<Warning>,
) -> Result<Summary> {
    let pictures = Pictures::of(&set);
    let own = StreamSummary::of(plan, nodes, set, ending, warnings)?;
    let iterations = own.per_node.iter().map(|node| node.iterations).sum();
    let path = PathSummary::Stream(own);
    Summary::new(plan.job, pictures, ending, nodes, iterations, path)
}

/// Of a job on the reliable path, each of whose workers made as many iterations.
///
/// # Errors
/// As [`of_stream`].
pub(super) fn of_poseidon(
    plan: PlanOf<'_, PoseidonPlan>,
    workers: &[SharedWeights],
    set: DataSet,
    ending: Ending,
) -> Result<Summary> {
    let pictures = Pictures::of(&set);
    let first = workers.first().context("no worker")?;
    let own = PoseidonSummary::of(plan, workers, first, set, ending)?;
    let iterations = first.globals().iterations();
    let path = PathSummary::Poseidon(own);
    Summary::new(plan.job, pictures, ending, workers, iterations, path)
}
