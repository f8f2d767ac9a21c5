//! Settings of a solver.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::{optional_shard, optional_source};
use super::error::SettingsError;
use super::limits::{STEPS_PER_S, lenet, one, test_images, two};
use super::{Settings, link};
use crate::node::SolverJob;
use crate::solver::SolverSpec;
use crate::solver::data::{Shard, Source};
use crate::stream::MAX_NODES;

/// What `dogwild solver` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SolverSettings {
    /// The node's buffer.
    pub buffer: PathBuf,
    /// A built-in model or a Caffe solver file.
    #[serde(default = "lenet")]
    pub solver: String,
    /// Pictures; none: digits where the model is for them.
    #[serde(default, with = "optional_source")]
    pub data: Option<Source>,
    /// This solver's number on this buffer, from 0.
    #[serde(default)]
    pub index: u32,
    /// Solvers on each node.
    #[serde(default = "one")]
    pub solvers: u32,
    /// This solver's share of the pictures; none: from node, nodes, index and solvers, as many
    /// solvers on each node.
    #[serde(default, with = "optional_shard")]
    pub shard: Option<Shard>,
    /// This node, from 0; none: what the streamer of the buffer says.
    #[serde(default)]
    pub node: Option<u16>,
    /// Number of nodes.
    #[serde(default = "two")]
    pub nodes: u16,
    /// Seed of the order of pictures.
    #[serde(default = "one")]
    pub seed: u64,
    /// Iterations of the cluster between tests; 0: none; none: the solver file's.
    #[serde(default)]
    pub test_every: Option<u64>,
    /// Which of those tests are this solver's, where nodes take turns; none: all.
    #[serde(default, with = "optional_shard")]
    pub test_turn: Option<Shard>,
    /// Test pictures of a test on the way; 0: all.
    #[serde(default = "test_images")]
    pub test_images: usize,
    /// Share of right answers, 0 to 1, with which a test ends the job.
    #[serde(default)]
    pub target_accuracy: Option<f32>,
    /// Steps per second at most.
    #[serde(default)]
    pub pace_steps: Option<f64>,
    /// Most local steps that what is known of another node's range may be old.
    #[serde(default)]
    pub max_age: Option<u64>,
    /// CSV file for rows of the learning curve.
    #[serde(default)]
    pub curve: Option<PathBuf>,
}

impl Settings for SolverSettings {
    const COMPONENT: &str = "solver";

    fn validate(&self) -> Result<(), SettingsError> {
        if self.index >= self.solvers {
            let what = format!(
                "{} of {} solvers: they count from 0",
                self.index, self.solvers
            );
            return Err(SettingsError::new("index", what));
        }
        if let Some(node) = self.node.filter(|node| *node >= MAX_NODES) {
            let what = format!("{node}: nodes count from 0, there are {MAX_NODES} at most");
            return Err(SettingsError::new("node", what));
        }
        for (field, share) in [("shard", self.shard), ("test_turn", self.test_turn)] {
            if let Some(Shard { index, of }) = share.filter(|share| share.index >= share.of) {
                let what = format!("{index} of {of}: shares count from 0");
                return Err(SettingsError::new(field, what));
            }
        }
        if let Some(target) = self.target_accuracy {
            link::share("target_accuracy", target.into())?;
        }
        if let Some(steps) = self.pace_steps.filter(|steps| !STEPS_PER_S.contains(steps)) {
            let (least, most) = (STEPS_PER_S.start(), STEPS_PER_S.end());
            let what = format!("{steps}: give {least} to {most} steps per second");
            return Err(SettingsError::new("pace_steps", what));
        }
        if self.max_age == Some(0) {
            let what = "0: a solver could never go on; give 1 step or more, or leave it out";
            return Err(SettingsError::new("max_age", what));
        }
        Ok(())
    }
}

impl SolverSettings {
    /// What the solver runs, with the model and the pictures that `solver` and `data` name.
    pub fn job(self, spec: SolverSpec, data: Source) -> SolverJob {
        SolverJob {
            test_every: self.test_every.unwrap_or(spec.test_interval),
            spec,
            data,
            index: self.index,
            shard: self.shard,
            node: self.node,
            nodes: self.nodes,
            solvers: self.solvers,
            seed: self.seed,
            test_turn: self.test_turn.unwrap_or(Shard::WHOLE),
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            pace_steps: self.pace_steps,
            max_age: self.max_age,
            curve: self.curve,
            buffer: self.buffer,
        }
    }
}
