//! The model, which all members must have alike: layers, hyper-parameters, first weights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use zerocopy::IntoBytes;

use super::error::PoseidonError;
use super::step::schedule;
use crate::node::{bound_net, data_kind};
use crate::poseidon::{
    ClusterSpec, LayerShape, LayerSpec, ModelFile, ModelFileError, Penalty, Plan, PlanTensor,
    Recording, StepRule, StepSpec,
};
use crate::solver::data::Source;
use crate::solver::{LayerTensors, Net, Phase, Regularization, SolverSpec, Tensor};
use crate::weights::{DataKind, Manifest, WeightsView};

/// Settings of the model, the same for all members.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// Model and hyper-parameters.
    pub spec: SolverSpec,
    /// Channels, height and width of the pictures.
    pub input: [usize; 3],
    /// Number of classes of the pictures.
    pub classes: usize,
    /// Seed of the first weights.
    pub seed: u64,
    /// File of weights to start from instead of random ones.
    pub weights: Option<PathBuf>,
    /// Threads of each worker that add up their gradients.
    pub threads: usize,
    /// Layers and times to replay instead of computing the net of `spec`, of which only the
    /// hyper-parameters are used then.
    pub replay: Option<Recording>,
    /// The model of programs with a [`Client`](super::Client), which compute the gradients.
    /// Nothing of `spec`, `input`, `classes`, `seed`, `threads` and `replay` is used then.
    pub file: Option<ModelFile>,
}

/// The model in memory.
pub(super) struct Model {
    /// A net of one image; none if programs with a client compute, or a recording is replayed.
    net: Option<Net>,
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
    /// The model of `file`, for coordinator and servers. Its first weights are zero.
    ///
    /// # Errors
    /// What is wrong with the file; see [`ModelFileError`](crate::poseidon::ModelFileError).
    pub fn of_file(file: ModelFile) -> Result<Self, PoseidonError> {
        file.check()?;
        // It has to be one; the file stands before it everywhere.
        let spec =
            SolverSpec::builtin("lenet").map_err(|why| PoseidonError::Misuse(why.to_string()))?;
        Ok(Self {
            spec,
            input: [1, 1, 1],
            classes: 1,
            seed: 1,
            weights: None,
            threads: 1,
            replay: None,
            file: Some(file),
        })
    }

    /// Checks the settings and builds the net.
    pub(super) fn open(&self) -> Result<Model, PoseidonError> {
        if let Some(file) = &self.file {
            file.check()?;
            return Model::of_file(file);
        }
        if self.spec.clip_gradients.is_some() {
            return Err(PoseidonError::Clipping);
        }
        if self.threads == 0 {
            return Err(PoseidonError::NoThreads);
        }
        if let Some(recording) = &self.replay {
            let manifest = recording.manifest()?;
            let layers = recording.plan_layers(&manifest);
            return Ok(Model {
                net: None,
                layers: layers.into_iter().map(LayerSpec::from).collect(),
                step: self.step(Vec::new()),
                images: recording.images.saturating_mul(self.threads as u32),
                manifest,
            });
        }
        let (net, manifest) = bound_net(&self.spec.net, Phase::Train, 1, self.input, self.classes)?;
        let batch = crate::node::train_batch(&self.spec.net)? as u64;
        let images = batch * self.spec.iter_size * self.threads as u64;
        let (layers, tensors) = (net.layers(), net.parameters());
        let multipliers = |layer: &LayerTensors| {
            let params = tensors[layer.tensors.clone()].iter().map(|t| t.param);
            params.map(|p| [p.lr_mult, p.decay_mult]).collect()
        };
        Ok(Model {
            step: self.step(layers.iter().map(multipliers).collect()),
            layers: layers.iter().map(|l| layer_of(l, tensors)).collect(),
            net: Some(net),
            manifest,
            images: u32::try_from(images).unwrap_or(u32::MAX),
        })
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

    /// How steps are made by the solver file.
    fn step(&self, multipliers: Vec<Vec<[f32; 2]>>) -> StepSpec {
        let spec = &self.spec;
        StepSpec {
            rule: StepRule::Sgd {
                rate: spec.base_lr,
                schedule: schedule(&spec.lr_policy),
                momentum: spec.momentum,
                weight_decay: spec.weight_decay,
                penalty: match spec.regularization_type {
                    Regularization::L2 => Penalty::L2,
                    Regularization::L1 => Penalty::L1,
                },
            },
            batches: spec.iter_size * self.threads as u64,
            multipliers,
        }
    }

    /// Iterations of each worker, unless the coordinator is given another number.
    pub fn iterations(&self) -> u64 {
        match &self.file {
            Some(file) => file.iterations.unwrap_or(u64::MAX),
            None => self.spec.max_iter,
        }
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
        let kind = || data_kind(source, self.input, self.classes);
        (self.replay.is_none() && self.file.is_none()).then(kind)
    }

    /// What decides a step apart from gradients. Members with equal texts make equal steps.
    pub(super) fn recipe(&self) -> String {
        if let Some(file) = &self.file {
            // Numbers and names, which JSON can always express.
            return serde_json::to_string(&file.step()).unwrap_or_default();
        }
        let s = &self.spec;
        format!(
            "base_lr {}, {:?}, momentum {}, weight_decay {} ({:?}), iter_size {}, {} threads",
            s.base_lr,
            s.lr_policy,
            s.momentum,
            s.weight_decay,
            s.regularization_type,
            s.iter_size,
            self.threads
        )
    }

    /// The weights to begin with, in the layout of the buffer.
    pub(super) fn first_weights(&self, model: &Model) -> Result<Vec<AtomicU32>, PoseidonError> {
        let words: Vec<_> = (0..model.extent()).map(|_| AtomicU32::new(0)).collect();
        let w = WeightsView::of(&words);
        match (&self.weights, &model.net) {
            (Some(file), _) => {
                crate::snapshot::load(file, &model.manifest, w)?;
            }
            (None, Some(net)) => net.initialise(w, self.seed),
            (None, None) => {}
        }
        Ok(words)
    }
}

impl Model {
    /// A model without a net, all weights zero.
    fn of_file(file: &ModelFile) -> Result<Self, PoseidonError> {
        let manifest = file.manifest().map_err(ModelFileError::from)?;
        Ok(Self {
            net: None,
            layers: file.plan_layers(&manifest),
            step: file.step(),
            images: file.images,
            manifest,
        })
    }

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

/// A layer of a net as a plan needs it.
fn layer_of(layer: &LayerTensors, tensors: &[Tensor]) -> LayerSpec {
    let tensors = &tensors[layer.tensors.clone()];
    let outputs = tensors[0].shape.first().copied().unwrap_or(1);
    let shape = LayerShape {
        outputs: outputs as u64,
        inputs: (tensors[0].len / outputs.max(1)) as u64,
        bias: tensors.len() > 1,
        fully_connected: layer.factored.is_some(),
    };
    let tensors = tensors.iter().map(|t| PlanTensor {
        name: t.name.clone(),
        offset: t.offset,
        len: t.len,
    });
    LayerSpec::from((layer.name.clone(), shape, tensors.collect()))
}

/// Hash of weights.
pub(super) fn hash(words: &[AtomicU32]) -> u64 {
    let bits: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    xxhash_rust::xxh3::xxh3_64(bits.as_bytes())
}
