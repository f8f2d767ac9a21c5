//! The part of a summary that says what was run. Every field is documented in
//! `docs/reference/summary-json.md`.

use anyhow::Result;
use serde::Serialize;

use super::curves::rows;
use super::experiment::Experiment;
use super::plan::JobPlan;
use super::reached::{Level, levels};
use crate::solver::data::DataSet;
use crate::solver::{NetSpec, SolverSpec};

/// The part of `summary.json` that does not depend on how nodes are kept in step.
#[derive(Clone, Debug, Serialize)]
pub struct Common {
    /// What was run, where and when.
    #[serde(flatten)]
    pub experiment: Experiment,
    /// Name of the model.
    pub model: String,
    /// Where the pictures came from.
    pub data: String,
    /// How many there are, and of what kind.
    pub pictures: Pictures,
    /// The solver file as it was read.
    pub solver: SolverSpec,
    /// The net that it names.
    pub net: Net,
    /// When tests on the way first reached which accuracy.
    pub time_to_accuracy: Vec<Level>,
}

/// Pictures of a job.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pictures {
    /// To learn from.
    pub train: usize,
    /// To test on.
    pub test: usize,
    /// Channels, height and width.
    pub shape: [usize; 3],
    /// Classes of pictures.
    pub classes: usize,
}

/// A net.
#[derive(Clone, Debug, Serialize)]
pub struct Net {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: String,
    /// A hash of all that its layers are; equal nets have equal hashes in one version of the
    /// program.
    pub hash: String,
    /// Its layers, in order.
    pub layers: Vec<String>,
}

impl Pictures {
    /// Those of `set`.
    pub fn of(set: &DataSet) -> Self {
        Self {
            train: set.train.len(),
            test: set.test.len(),
            shape: set.train.shape,
            classes: set.train.classes,
        }
    }
}

impl Net {
    fn of(net: &NetSpec) -> Self {
        // Without the places in the file: a blank line makes no other net.
        let layers = net.layers.iter().map(|layer| {
            format!(
                "{} {:?} {:?} {:?} {} {:?};",
                layer.name, layer.bottoms, layer.tops, layer.params, layer.loss_weight, layer.op
            )
        });
        let text: String = layers.collect();
        Self {
            name: net.name.clone(),
            file: net.file.clone(),
            hash: format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes())),
            layers: net.layers.iter().map(|layer| layer.name.clone()).collect(),
        }
    }
}

impl Common {
    /// Of a job whose rows are of `nodes` nodes.
    pub(super) fn new(plan: &JobPlan, pictures: Pictures, nodes: u16) -> Result<Self> {
        let rows = rows(&plan.out, nodes)?;
        Ok(Self {
            experiment: plan.experiment.clone(),
            model: plan.model.clone(),
            data: plan.data.to_string(),
            pictures,
            solver: plan.spec.clone(),
            net: Net::of(&plan.spec.net),
            time_to_accuracy: levels(&rows, nodes, plan.target_accuracy),
        })
    }
}
