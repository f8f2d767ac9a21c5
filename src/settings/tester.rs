//! Settings of a tester.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::optional_source;
use super::error::SettingsError;
use super::{Settings, limits, link};
use crate::node::TesterJob;
use crate::solver::SolverSpec;
use crate::solver::data::Source;

/// What `dogwild tester` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TesterSettings {
    /// The node's buffer.
    pub buffer: PathBuf,
    /// A built-in model or a Caffe solver file.
    #[serde(default = "limits::lenet")]
    pub solver: String,
    /// Pictures; none: digits where the model is for them.
    #[serde(default, with = "optional_source")]
    pub data: Option<Source>,
    /// This node, from 0; none: what the streamer of the buffer says.
    #[serde(default)]
    pub node: Option<u16>,
    /// Iterations of the cluster between tests, at least 1; none: the solver file's.
    #[serde(default)]
    pub test_every: Option<u64>,
    /// Test pictures of a test; 0: all.
    #[serde(default)]
    pub test_images: usize,
    /// Share of right answers, 0 to 1, with which a test ends the job.
    #[serde(default)]
    pub target_accuracy: Option<f32>,
    /// CSV file for rows of the learning curve.
    #[serde(default)]
    pub curve: Option<PathBuf>,
}

impl Settings for TesterSettings {
    const COMPONENT: &str = "tester";

    fn validate(&self) -> Result<(), SettingsError> {
        if self.test_every == Some(0) {
            let what = "0: a tester does nothing else; give 1 iteration or more, or leave it out";
            return Err(SettingsError::new("test_every", what));
        }
        match self.target_accuracy {
            Some(target) => link::share("target_accuracy", target.into()),
            None => Ok(()),
        }
    }
}

impl TesterSettings {
    /// What the tester runs, with the model and the pictures that `solver` and `data` name.
    pub fn job(self, spec: SolverSpec, data: Source) -> TesterJob {
        TesterJob {
            test_every: self.test_every.unwrap_or(spec.test_interval),
            buffer: self.buffer,
            spec,
            data,
            node: self.node,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            curve: self.curve,
        }
    }
}
