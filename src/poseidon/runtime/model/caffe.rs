//! Caffe's model: a net and a solver file, whose gradients our own worker computes.

use super::{Kind, Model};
use crate::node::{bound_net, data_kind, train_batch};
use crate::poseidon::runtime::error::PoseidonError;
use crate::poseidon::runtime::step::schedule;
use crate::poseidon::{LayerShape, LayerSpec, Penalty, PlanTensor, Recording, StepRule, StepSpec};
use crate::solver::data::Source;
use crate::solver::{LayerTensors, Phase, Regularization, SolverSpec, Tensor};
use crate::weights::DataKind;

/// A net, its hyper-parameters and its pictures' shape.
#[derive(Clone, Debug)]
pub struct CaffeModel {
    /// Model and hyper-parameters.
    pub spec: SolverSpec,
    /// Channels, height and width of the pictures.
    pub input: [usize; 3],
    /// Number of classes of the pictures.
    pub classes: usize,
    /// Seed of the first weights.
    pub seed: u64,
    /// Threads of each worker that add up their gradients.
    pub threads: usize,
    /// Layers and times to replay instead of computing the net of `spec`, of which only the
    /// hyper-parameters are used then.
    pub replay: Option<Recording>,
}

impl Kind for CaffeModel {
    fn open(&self) -> Result<Model, PoseidonError> {
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
                first: None,
                layers: layers.into_iter().map(LayerSpec::from).collect(),
                step: self.step(Vec::new()),
                images: recording.images.saturating_mul(self.threads as u32),
                manifest,
            });
        }
        let (net, manifest) = bound_net(&self.spec.net, Phase::Train, 1, self.input, self.classes)?;
        let batch = train_batch(&self.spec.net)? as u64;
        let images = batch * self.spec.iter_size * self.threads as u64;
        let (layers, tensors) = (net.layers(), net.parameters());
        let multipliers = |layer: &LayerTensors| {
            let params = tensors[layer.tensors.clone()].iter().map(|t| t.param);
            params.map(|p| [p.lr_mult, p.decay_mult]).collect()
        };
        let seed = self.seed;
        Ok(Model {
            step: self.step(layers.iter().map(multipliers).collect()),
            layers: layers.iter().map(|l| layer_of(l, tensors)).collect(),
            first: Some(Box::new(move |w| net.initialise(w, seed))),
            manifest,
            images: u32::try_from(images).unwrap_or(u32::MAX),
        })
    }

    fn iterations(&self) -> u64 {
        self.spec.max_iter
    }

    fn recipe(&self) -> String {
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

    fn data(&self, source: &Source) -> Option<DataKind> {
        let kind = || data_kind(source, self.input, self.classes);
        self.replay.is_none().then(kind)
    }

    fn caffe(&self) -> Option<&CaffeModel> {
        Some(self)
    }
}

impl CaffeModel {
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
    let tensors = tensors.iter();
    let tensors = tensors.map(|t| PlanTensor::new(&t.name, t.offset, &t.shape));
    LayerSpec::from((layer.name.clone(), shape, tensors.collect()))
}
