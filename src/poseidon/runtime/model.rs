//! The model, which all members must have alike: layers, hyper-parameters, first weights.
//!
//! [`ModelJob`] is one that a program with a [`Client`](super::Client) computes, or Caffe's
//! ([`CaffeModel`]). The kinds meet in a trait, so a library without the latter has none of its
//! code.

mod caffe;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use zerocopy::IntoBytes;

use super::error::PoseidonError;
use crate::poseidon::{
    ClusterSpec, LayerSpec, ModelFile, ModelFileError, Plan, StepRule, StepSpec,
};
use crate::solver::data::Source;
use crate::weights::{DataKind, Manifest, WeightsView};

pub use caffe::CaffeModel;

/// Settings of the model, the same for all members.
#[derive(Clone, Debug)]
pub struct ModelJob {
    kind: Arc<dyn Kind>,
    /// File of weights to start from, instead of those that the model begins with.
    pub weights: Option<PathBuf>,
}

/// What a kind of model says of itself.
trait Kind: fmt::Debug + Send + Sync {
    /// Checks the settings, and gives the model in memory.
    fn open(&self) -> Result<Model, PoseidonError>;

    /// Iterations of each worker, unless the coordinator is given another number.
    fn iterations(&self) -> u64;

    /// What decides a step apart from gradients. Members with equal texts make equal steps.
    fn recipe(&self) -> String;

    /// The kind of `source`; `None` if no solver reads pictures.
    fn data(&self, source: &Source) -> Option<DataKind>;

    /// Caffe's, which a worker of our own computes.
    fn caffe(&self) -> Option<&CaffeModel> {
        None
    }
}

/// Sets the weights that a model begins with.
type FirstWeights = Box<dyn Fn(WeightsView<'_>) + Send>;

/// The model in memory.
pub(super) struct Model {
    /// Sets the first weights; none: they are zero.
    first: Option<FirstWeights>,
    /// The layers that learn.
    layers: Vec<LayerSpec>,
    /// How steps are made.
    step: StepSpec,
    /// Where the tensors lie.
    pub(super) manifest: Manifest,
    /// Images of one worker in one iteration.
    pub(super) images: u32,
}

impl ModelJob {
    /// The model of `file`, for coordinator and servers: programs with a
    /// [`Client`](super::Client) compute the gradients. Its first weights are zero.
    ///
    /// # Errors
    /// What is wrong with the file; see [`ModelFileError`](crate::poseidon::ModelFileError).
    pub fn of_file(file: ModelFile) -> Result<Self, PoseidonError> {
        file.check()?;
        Ok(Self {
            kind: Arc::new(file),
            weights: None,
        })
    }

    /// Caffe's model, for all members.
    pub fn of_caffe(model: CaffeModel) -> Self {
        Self {
            kind: Arc::new(model),
            weights: None,
        }
    }

    /// Caffe's, if it is one.
    pub fn caffe(&self) -> Option<&CaffeModel> {
        self.kind.caffe()
    }

    /// Checks the settings, and gives the model in memory.
    pub(super) fn open(&self) -> Result<Model, PoseidonError> {
        self.kind.open()
    }

    /// The plan of `cluster` for `model`.
    pub(super) fn plan(&self, model: &Model, cluster: &ClusterSpec) -> Result<Plan, PoseidonError> {
        let cluster = ClusterSpec {
            images: model.images,
            recipe: self.recipe(),
            ..cluster.clone()
        };
        Ok(Plan::new(&cluster, model.layers.clone())?.with_step(model.step.clone())?)
    }

    /// Iterations of each worker, unless the coordinator is given another number.
    pub fn iterations(&self) -> u64 {
        self.kind.iterations()
    }

    /// Checks whether a coordinator accepts this model and `cluster`.
    ///
    /// # Errors
    /// What it would refuse; see [`PoseidonError`].
    pub fn check(&self, cluster: &ClusterSpec) -> Result<(), PoseidonError> {
        self.plan(&self.open()?, cluster).map(drop)
    }

    /// The kind of `source`; `None` if no solver reads pictures.
    pub(super) fn data(&self, source: &Source) -> Option<DataKind> {
        self.kind.data(source)
    }

    /// What decides a step apart from gradients. Members with equal texts make equal steps.
    pub(super) fn recipe(&self) -> String {
        self.kind.recipe()
    }

    /// The weights to begin with, in the layout of the buffer.
    pub(super) fn first_weights(&self, model: &Model) -> Result<Vec<AtomicU32>, PoseidonError> {
        let words: Vec<_> = (0..model.extent()).map(|_| AtomicU32::new(0)).collect();
        let w = WeightsView::of(&words);
        match (&self.weights, &model.first) {
            (Some(file), _) => {
                crate::snapshot::load(file, &model.manifest, w)?;
            }
            (None, Some(set)) => set(w),
            (None, None) => {}
        }
        Ok(words)
    }
}

impl Kind for ModelFile {
    fn open(&self) -> Result<Model, PoseidonError> {
        self.check()?;
        let manifest = self.manifest().map_err(ModelFileError::from)?;
        Ok(Model {
            first: None,
            layers: self.plan_layers(&manifest),
            step: self.step(),
            images: self.images,
            manifest,
        })
    }

    fn iterations(&self) -> u64 {
        self.iterations.unwrap_or(u64::MAX)
    }

    fn recipe(&self) -> String {
        // Numbers and names, which JSON can always express.
        serde_json::to_string(&self.step()).unwrap_or_default()
    }

    fn data(&self, _: &Source) -> Option<DataKind> {
        None
    }
}

impl Model {
    /// What a server says of its first weights; 0: nothing. Where it holds gradients, the weights
    /// are the clients' own.
    pub(super) fn first_hash(&self, weights: &[AtomicU32]) -> u64 {
        match self.step.rule {
            StepRule::Mean {} => 0,
            _ => hash(weights),
        }
    }

    /// Weights of a buffer that holds every tensor.
    pub(super) fn extent(&self) -> usize {
        let tensors = self.manifest.tensors().iter();
        tensors.map(|t| t.offset + t.len()).max().unwrap_or(0)
    }
}

/// Hash of weights.
pub(super) fn hash(words: &[AtomicU32]) -> u64 {
    let bits: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    xxhash_rust::xxh3::xxh3_64(bits.as_bytes())
}
