//! A net with shapes: built from a [`NetSpec`] for one phase, one batch size and one input.
//!
//! It owns what one solver needs in addition to the weights (activations, gradients with respect to
//! them) and reads the weights from a [`WeightsView`] that others change meanwhile. All memory is
//! taken here; a step allocates nothing. `run.rs` has the passes.

mod builder;

use pulp::Arch;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::error::ModelError;
use super::filler::Filler;
use super::layers::{Blob, Layer, Shape};
use super::net_spec::{NetSpec, ParamSpec, Phase, TransformSpec};
use crate::weights::WeightsView;
use builder::Builder;
use dogwild_kernels::Buffer;

/// Tensors begin at multiples of this many weights: one cache line, one AVX-512 vector.
pub const TENSOR_ALIGN: usize = 16;

/// A parameter tensor: where it lies in the shared buffer and how it is learned.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// `<layer>.weight` or `<layer>.bias`.
    pub name: String,
    /// Outputs first, as Caffe stores it.
    pub shape: Vec<usize>,
    /// First weight in the shared buffer.
    pub offset: usize,
    /// Product of the shape.
    pub len: usize,
    /// Multipliers of rate and decay.
    pub param: ParamSpec,
    pub(crate) filler: Filler,
}

/// A layer that learns, with its tensors among [`Net::parameters`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerTensors {
    /// The layer's name.
    pub name: String,
    /// Its tensors: weight, then bias if it has one.
    pub tensors: std::ops::Range<usize>,
    /// Outputs and inputs, if it is fully connected.
    pub factored: Option<[usize; 2]>,
}

/// One layer in its place in the net.
pub(crate) struct Node {
    pub(crate) layer: Box<dyn Layer>,
    pub(crate) bottoms: Vec<usize>,
    pub(crate) top: Option<usize>,
    /// Top and bottom are the same blob.
    pub(crate) shares_blob: bool,
    /// Its tensors: first index and number.
    pub(crate) tensors: (usize, usize),
    pub(crate) loss_weight: f32,
    /// A gradient reaches its top.
    pub(crate) reached: bool,
    /// Per bottom: no gradient wanted, the first to give it, or to be added to others'.
    pub(crate) gives: Vec<Gives>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    Nothing,
    First,
    Added,
}

/// A net for one phase, ready to run.
pub struct Net {
    pub(crate) arch: Arch,
    pub(crate) phase: Phase,
    pub(crate) batch: usize,
    pub(crate) input: Shape,
    pub(crate) classes: usize,
    pub(crate) blobs: Vec<Blob>,
    pub(crate) input_blob: usize,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) scratch: Buffer,
    pub(crate) passes: u64,
    transform: TransformSpec,
    name: String,
}

impl Net {
    /// Builds the layers of `phase` for batches of `batch` images of `input` (channels, height,
    /// width, after cropping) with labels below `classes`.
    ///
    /// The tensors are packed one after the other at multiples of [`TENSOR_ALIGN`] weights;
    /// [`Net::bind`] moves them.
    ///
    /// # Errors
    /// Layers that do not fit together or do not fit the input, by name.
    pub fn new(
        spec: &NetSpec,
        phase: Phase,
        batch: usize,
        input: [usize; 3],
        classes: usize,
    ) -> Result<Self, ModelError> {
        Self::with_arch(spec, phase, batch, input, classes, Arch::new())
    }

    /// As [`Net::new`] on a given instruction set: tests run each one the machine has.
    pub(crate) fn with_arch(
        spec: &NetSpec,
        phase: Phase,
        batch: usize,
        input: [usize; 3],
        classes: usize,
        arch: Arch,
    ) -> Result<Self, ModelError> {
        if batch == 0 || classes == 0 || input.contains(&0) {
            return Err(ModelError::Mismatch(format!(
                "net {}: a batch of {batch} images of {input:?} in {classes} classes is empty; each must be 1 or more",
                spec.name
            )));
        }
        let mut builder = Builder::new(arch, batch, input, classes);
        for layer in spec.layers_in(phase) {
            builder.add(layer)?;
        }
        builder.finish(spec, phase)
    }

    /// Name and shape of each parameter tensor, in the order of the layers.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.tensors
            .iter()
            .map(|t| (t.name.clone(), t.shape.clone()))
            .collect()
    }

    /// The parameter tensors with their offsets and multipliers.
    pub fn parameters(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The layers that learn, first layer first.
    pub fn layers(&self) -> Vec<LayerTensors> {
        let learning = self.nodes.iter().filter(|node| node.tensors.1 > 0);
        learning
            .map(|node| {
                let (first, count) = node.tensors;
                let name = &self.tensors[first].name;
                LayerTensors {
                    name: name
                        .rsplit_once('.')
                        .map_or(name.as_str(), |(layer, _)| layer)
                        .into(),
                    tensors: first..first + count,
                    factored: node.layer.factored(),
                }
            })
            .collect()
    }

    /// Leaves out the gradients of fully connected layer `layer` (of [`Net::layers`]): the function
    /// that is called after its backward pass takes the factors instead.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn keep_factors(&mut self, layer: usize) {
        let mut learning = self.nodes.iter_mut().filter(|node| node.tensors.1 > 0);
        let node = learning.nth(layer).expect("a layer of Net::layers");
        node.layer.keep_factors(true);
    }

    /// Passes made so far: what the masks of dropout are derived from.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Goes on after `passes` ([`Net::passes`] of the net that was stopped).
    pub fn resume_passes(&mut self, passes: u64) {
        self.passes = passes;
    }

    /// Weights that a buffer must have to hold every tensor where it is bound.
    pub fn extent(&self) -> usize {
        self.tensors
            .iter()
            .map(|t| t.offset + t.len)
            .max()
            .unwrap_or(0)
    }

    /// Sets where each tensor (in the order of [`Net::tensors`]) begins in the shared buffer.
    ///
    /// # Errors
    /// Another number of tensors, or tensors that overlap.
    pub fn bind(&mut self, offsets: &[usize]) -> Result<(), ModelError> {
        if offsets.len() != self.tensors.len() {
            return Err(ModelError::Mismatch(format!(
                "net {} has {} tensors, but {} offsets were given; the buffer is of another model",
                self.name,
                self.tensors.len(),
                offsets.len()
            )));
        }
        let mut order: Vec<usize> = (0..offsets.len()).collect();
        order.sort_by_key(|&i| offsets[i]);
        for pair in order.windows(2) {
            if offsets[pair[1]] - offsets[pair[0]] < self.tensors[pair[0]].len {
                return Err(ModelError::Mismatch(format!(
                    "tensors {} and {} overlap in the buffer; it is of another model",
                    self.tensors[pair[0]].name, self.tensors[pair[1]].name
                )));
            }
        }
        for (tensor, &offset) in self.tensors.iter_mut().zip(offsets) {
            tensor.offset = offset;
        }
        Ok(())
    }

    /// Fills the weights as the net file says, from `seed` alone.
    ///
    /// # Panics
    /// If `w` is shorter than [`Net::extent`].
    pub fn initialise(&self, w: WeightsView<'_>, seed: u64) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        for tensor in &self.tensors {
            let to = w.slice(tensor.offset, tensor.len);
            for (i, value) in tensor
                .filler
                .values(&tensor.shape, &mut rng)
                .into_iter()
                .enumerate()
            {
                // Shared weights are never -0.0 (see `weights::kernels`).
                to.store(i, value + 0.0);
            }
        }
    }

    /// Images per batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Channels, height, width of one image.
    pub fn input(&self) -> [usize; 3] {
        self.input
    }

    /// Labels are below this.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// What this phase's data layer does to each image before the net sees it.
    pub fn transform_param(&self) -> &TransformSpec {
        &self.transform
    }

    /// Seed of dropout (default 0).
    pub fn seed_dropout(&mut self, seed: u64) {
        // Mixed into the pass count, which each mask is derived from.
        self.passes = seed.rotate_left(32);
    }
}
