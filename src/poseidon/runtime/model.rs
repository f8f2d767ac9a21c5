//! The model, which all members must have alike: layers, hyper-parameters, first weights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use zerocopy::IntoBytes;

use super::error::PoseidonError;
use super::step::schedule;
use crate::node::{bound_net, data_kind};
use crate::poseidon::{
    ClusterSpec, LayerShape, Penalty, Plan, PlanError, PlanTensor, Recording, StepRule, StepSpec,
};
use crate::solver::data::Source;
use crate::solver::{
    Filler, LayerTensors, Net, ParamSpec, Phase, Regularization, SolverSpec, Tensor,
};
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
    /// How steps are made; `None`: as `spec` says.
    pub step: Option<StepRule>,
}

/// A layer as a plan needs it: name, shape, tensors.
pub(super) type Layer = (String, LayerShape, Vec<PlanTensor>);

/// The model in memory.
pub(super) struct Model {
    /// A net of one image; none if a recording is replayed.
    net: Option<Net>,
    /// The layers that learn.
    pub(super) layers: Vec<LayerTensors>,
    /// Their tensors, with multipliers.
    pub(super) tensors: Vec<Tensor>,
    /// Where the tensors lie.
    pub(super) manifest: Manifest,
    /// Images of one worker in one iteration.
    pub(super) images: u32,
}

impl ModelJob {
    /// A model whose gradients are computed by programs with a [`Client`](super::Client): the
    /// layers of `layers` (its times do not matter), all weights zero, steps by `rule`.
    ///
    /// # Errors
    /// The rule has a number that cannot be.
    pub fn of_layers(layers: Recording, rule: StepRule) -> Result<Self, PoseidonError> {
        rule.check().map_err(PlanError::from)?;
        // The solver file gives neither layers nor steps here.
        let spec =
            SolverSpec::builtin("lenet").map_err(|why| PoseidonError::Misuse(why.to_string()))?;
        Ok(Self {
            spec,
            input: [1, 1, 1],
            classes: 1,
            seed: 1,
            weights: None,
            threads: 1,
            replay: Some(layers),
            step: Some(rule),
        })
    }

    /// Checks the settings and builds the net.
    pub(super) fn open(&self) -> Result<Model, PoseidonError> {
        if self.spec.clip_gradients.is_some() {
            return Err(PoseidonError::Clipping);
        }
        if self.threads == 0 {
            return Err(PoseidonError::NoThreads);
        }
        if let Some(recording) = &self.replay {
            return Model::replayed(recording, self.threads);
        }
        let (net, manifest) = bound_net(&self.spec.net, Phase::Train, 1, self.input, self.classes)?;
        let batch = crate::node::train_batch(&self.spec.net)? as u64;
        let images = batch * self.spec.iter_size * self.threads as u64;
        Ok(Model {
            layers: net.layers(),
            tensors: net.parameters().to_vec(),
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
        Ok(Plan::new(&cluster, model.layers())?.with_step(self.step(model))?)
    }

    /// How steps are made: by the rule that is given, or as the solver file says.
    fn step(&self, model: &Model) -> StepSpec {
        if let Some(rule) = &self.step {
            return StepSpec {
                batches: self.threads as u64,
                ..StepSpec::of(rule.clone())
            };
        }
        let (spec, tensors) = (&self.spec, &model.tensors);
        let of_layer = |layer: &LayerTensors| {
            let params = tensors[layer.tensors.clone()].iter().map(|t| t.param);
            params.map(|p| [p.lr_mult, p.decay_mult]).collect()
        };
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
            multipliers: model.layers.iter().map(of_layer).collect(),
        }
    }

    /// Checks whether a coordinator accepts this model and `cluster`.
    ///
    /// # Errors
    /// What it would refuse; see [`PoseidonError`].
    pub fn check(&self, cluster: &ClusterSpec) -> Result<(), PoseidonError> {
        self.plan(&self.open()?, cluster).map(drop)
    }

    /// The kind of `source`; `None` if a recording is replayed, which reads no pictures.
    pub(super) fn data(&self, source: &Source) -> Option<DataKind> {
        let kind = || data_kind(source, self.input, self.classes);
        self.replay.is_none().then(kind)
    }

    /// What decides a step apart from gradients. Members with equal texts make equal steps.
    pub(super) fn recipe(&self) -> String {
        if let Some(rule) = &self.step {
            let rule = serde_json::to_string(rule).unwrap_or_default();
            return format!("{rule}, {} threads", self.threads);
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
    /// A model without a net: the layers of a recording, all weights zero.
    fn replayed(recording: &Recording, threads: usize) -> Result<Self, PoseidonError> {
        let manifest = recording.manifest()?;
        let mut model = Self {
            net: None,
            layers: Vec::new(),
            tensors: Vec::new(),
            images: recording.images.saturating_mul(threads as u32),
            manifest,
        };
        for (name, shape, tensors) in recording.plan_layers(&model.manifest) {
            let sizes = [shape.outputs as usize, shape.inputs as usize];
            let first = model.tensors.len();
            for (i, tensor) in tensors.into_iter().enumerate() {
                model.tensors.push(Tensor {
                    name: tensor.name,
                    shape: sizes[..2 - i].to_vec(),
                    offset: tensor.offset,
                    len: tensor.len,
                    param: ParamSpec::default(),
                    filler: Filler::Constant { value: 0.0 },
                });
            }
            model.layers.push(LayerTensors {
                name,
                tensors: first..model.tensors.len(),
                factored: shape.fully_connected.then_some(sizes),
            });
        }
        Ok(model)
    }

    /// Weights of a buffer that holds every tensor.
    pub(super) fn extent(&self) -> usize {
        let ends = self.tensors.iter().map(|t| t.offset + t.len);
        ends.max().unwrap_or(0)
    }

    /// The layers that learn.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let layers = self.layers.iter().cloned().map(|layer| {
            let tensors = &self.tensors[layer.tensors];
            let shape = &tensors[0].shape;
            let outputs = shape.first().copied().unwrap_or(1);
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
            (layer.name, shape, tensors.collect())
        });
        layers.collect()
    }
}

/// Hash of weights.
pub(super) fn hash(words: &[AtomicU32]) -> u64 {
    let bits: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    xxhash_rust::xxh3::xxh3_64(bits.as_bytes())
}
