//! What a finished job reports: `summary.json`, and the table on the terminal.
//!
//! Every field is documented in `docs/reference/summary-json.md`; units are in the names.

use anyhow::Result;
use serde::Serialize;

use super::common::{Common, Pictures};
use super::outcome::Outcome;
use super::plan::JobPlan;
use super::poseidon_summary::PoseidonSummary;
use super::stream_summary::StreamSummary;
use super::title::title;
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

/// How a job went, as far as those who watched its components know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) outcome: Outcome,
    pub(super) train_s: f64,
    pub(super) restarts: u32,
    pub(super) replicas_identical: bool,
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
    pub(super) fn new(
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
