//! A net with shapes: built from a [`NetSpec`] for one phase, one batch size and one input.
//!
//! It owns what one solver needs beside the weights (activations, gradients with respect to
//! them) and reads the weights from a [`WeightsView`] that others change meanwhile. All
//! memory is taken here; a step allocates nothing. `run.rs` has the passes.

use std::collections::HashMap;

use pulp::Arch;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::error::ModelError;
use super::filler::Filler;
use super::kernels::{BLOCK, Buffer};
use super::layers::{self, Layer, Shape};
use super::net_spec::{LayerOp, LayerSpec, NetSpec, ParamSpec, Phase, TransformSpec};
use crate::weights::WeightsView;

/// Tensors begin at multiples of this many weights: one cache line, one AVX-512 vector.
pub const TENSOR_ALIGN: usize = 16;

/// Values of one blob for the whole batch, and the gradient of the loss with respect to them.
pub(crate) struct Blob {
    pub(crate) shape: Shape,
    pub(crate) data: Buffer,
    /// Empty if nothing below it learns.
    pub(crate) diff: Buffer,
}

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
    /// [`Net::bind`] says otherwise.
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

    /// Weights that a buffer must have to hold every tensor where it is bound.
    pub fn extent(&self) -> usize {
        self.tensors
            .iter()
            .map(|t| t.offset + t.len)
            .max()
            .unwrap_or(0)
    }

    /// Says where each tensor (in the order of [`Net::tensors`]) begins in the shared buffer.
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

/// A name's present meaning while the net is built.
#[derive(Clone, Copy)]
enum Named {
    Blob(usize),
    Label,
}

struct Builder {
    arch: Arch,
    batch: usize,
    blocks: usize,
    input: Shape,
    classes: usize,
    blobs: Vec<Blob>,
    /// Per blob: it depends on a parameter, so its gradient is wanted.
    learns: Vec<bool>,
    /// Per blob: who has read it so far, and whether its layer needs it unchanged.
    readers: Vec<Vec<String>>,
    fixed: Vec<Option<String>>,
    names: HashMap<String, Named>,
    input_blob: Option<usize>,
    nodes: Vec<Node>,
    tensors: Vec<Tensor>,
    seen: Vec<String>,
}

impl Builder {
    fn new(arch: Arch, batch: usize, input: Shape, classes: usize) -> Self {
        Self {
            arch,
            batch,
            blocks: batch.div_ceil(BLOCK),
            input,
            classes,
            blobs: Vec::new(),
            learns: Vec::new(),
            readers: Vec::new(),
            fixed: Vec::new(),
            names: HashMap::new(),
            input_blob: None,
            nodes: Vec::new(),
            tensors: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn blob(&mut self, shape: Shape, learns: bool) -> usize {
        let len = shape.iter().product::<usize>() * BLOCK * self.blocks;
        let diff = if learns {
            Buffer::zeros(len)
        } else {
            Buffer::default()
        };
        self.blobs.push(Blob {
            shape,
            data: Buffer::zeros(len),
            diff,
        });
        self.learns.push(learns);
        self.readers.push(Vec::new());
        self.fixed.push(None);
        self.blobs.len() - 1
    }

    fn add(&mut self, spec: &LayerSpec) -> Result<(), ModelError> {
        if self.seen.contains(&spec.name) {
            return Err(wrong(
                spec,
                "another layer of this phase has the same name; rename one",
            ));
        }
        self.seen.push(spec.name.clone());
        match &spec.op {
            LayerOp::Data {
                shape, transform, ..
            } => self.add_data(spec, *shape, transform),
            LayerOp::SoftmaxWithLoss { .. } | LayerOp::Accuracy { .. } => self.add_loss(spec),
            _ => self.add_layer(spec),
        }
    }

    fn add_data(
        &mut self,
        spec: &LayerSpec,
        shape: Option<Shape>,
        transform: &TransformSpec,
    ) -> Result<(), ModelError> {
        let [channels, height, width] = self.input;
        for (i, top) in spec.tops.iter().enumerate() {
            if i == 1 || top == "label" {
                self.names.insert(top.clone(), Named::Label);
                continue;
            }
            if self.input_blob.is_some() || i > 1 {
                return Err(wrong(
                    spec,
                    "only one source of images and one of labels is supported",
                ));
            }
            let crop = transform.crop_size;
            if crop > 0 && (height, width) != (crop, crop) {
                return Err(wrong(
                    spec,
                    format!(
                        "crop_size is {crop}, but the images come as {height}x{width}; is this another data set's net?"
                    ),
                ));
            }
            if let Some([c, h, w]) = shape.filter(|s| *s != self.input) {
                return Err(wrong(
                    spec,
                    format!(
                        "its shape is {c}x{h}x{w}, but the images are {channels}x{height}x{width}; is this another data set's net?"
                    ),
                ));
            }
            let blob = self.blob(self.input, false);
            self.input_blob = Some(blob);
            self.names.insert(top.clone(), Named::Blob(blob));
        }
        Ok(())
    }

    fn bottom(&self, spec: &LayerSpec, name: &str) -> Result<usize, ModelError> {
        match self.names.get(name) {
            Some(Named::Blob(blob)) => Ok(*blob),
            Some(Named::Label) => Err(wrong(
                spec,
                format!("bottom \"{name}\" is the labels; only losses and accuracies read them"),
            )),
            None => Err(wrong(
                spec,
                format!("no layer before it has a top \"{name}\""),
            )),
        }
    }

    fn add_loss(&mut self, spec: &LayerSpec) -> Result<(), ModelError> {
        let [scores, labels] = spec.bottoms.as_slice() else {
            return Err(wrong(
                spec,
                format!(
                    "needs two bottoms, scores and labels; has {}",
                    spec.bottoms.len()
                ),
            ));
        };
        if !matches!(self.names.get(labels), Some(Named::Label)) {
            return Err(wrong(
                spec,
                format!("its second bottom \"{labels}\" is not the label of a data layer"),
            ));
        }
        if spec.tops.len() > 1 {
            return Err(wrong(spec, "more than one top is not supported"));
        }
        let scores = self.bottom(spec, scores)?;
        let outputs = self.blobs[scores].shape[0];
        if outputs < self.classes {
            return Err(wrong(
                spec,
                format!(
                    "there are {outputs} scores, but the data has {} classes; is this another data set's net?",
                    self.classes
                ),
            ));
        }
        let node = self.node(spec, vec![scores], None)?;
        self.nodes.push(node);
        Ok(())
    }

    fn add_layer(&mut self, spec: &LayerSpec) -> Result<(), ModelError> {
        let bottoms: Vec<usize> = spec
            .bottoms
            .iter()
            .map(|b| self.bottom(spec, b))
            .collect::<Result<_, _>>()?;
        let [top] = spec.tops.as_slice() else {
            return Err(wrong(
                spec,
                format!("needs exactly one top, has {}", spec.tops.len()),
            ));
        };
        let shares = spec.bottoms.contains(top);
        let node = self.node(spec, bottoms, Some((top, shares)))?;
        self.nodes.push(node);
        Ok(())
    }

    /// Builds the layer, its tensors and its top.
    fn node(
        &mut self,
        spec: &LayerSpec,
        bottoms: Vec<usize>,
        top: Option<(&String, bool)>,
    ) -> Result<Node, ModelError> {
        let shapes: Vec<Shape> = bottoms.iter().map(|&b| self.blobs[b].shape).collect();
        let seed = self.nodes.len() as u64;
        let (layer, shape) = layers::build(&spec.op, self.arch, &shapes, self.blocks, seed)
            .map_err(|problem| wrong(spec, problem))?;
        let first = self.tensors.len();
        self.add_tensors(spec, layer.as_ref())?;
        let count = self.tensors.len() - first;
        let learns = count > 0 || bottoms.iter().any(|&b| self.learns[b]);
        let shares_blob = top.is_some_and(|t| t.1);
        if shares_blob {
            self.check_in_place(spec, layer.as_ref(), bottoms[0])?;
        } else {
            bottoms
                .iter()
                .for_each(|&b| self.readers[b].push(spec.name.clone()));
        }
        let top = match (top, shape) {
            (Some((name, shares)), Some(shape)) => {
                let blob = if shares {
                    bottoms[0]
                } else {
                    self.blob(shape, learns)
                };
                if layer.reads_top() {
                    self.fixed[blob] = Some(spec.name.clone());
                }
                self.names.insert(name.clone(), Named::Blob(blob));
                Some(blob)
            }
            _ => None,
        };
        let gives = vec![Gives::Nothing; bottoms.len()];
        let tensors = (first, count);
        let loss_weight = spec.loss_weight;
        Ok(Node {
            layer,
            bottoms,
            top,
            shares_blob,
            tensors,
            loss_weight,
            reached: false,
            gives,
        })
    }

    /// An in-place layer must be able to, and nobody else may still need the old values.
    fn check_in_place(
        &self,
        spec: &LayerSpec,
        layer: &dyn Layer,
        blob: usize,
    ) -> Result<(), ModelError> {
        if !layer.in_place() {
            return Err(wrong(
                spec,
                "cannot work in place; give its top another name than its bottom",
            ));
        }
        let needed_by = self.readers[blob].first().or(self.fixed[blob].as_ref());
        match needed_by {
            Some(other) => Err(wrong(
                spec,
                format!(
                    "would overwrite in place what layer \"{other}\" still needs; give its top another name"
                ),
            )),
            None => Ok(()),
        }
    }

    fn add_tensors(&mut self, spec: &LayerSpec, layer: &dyn Layer) -> Result<(), ModelError> {
        let parameters = layer.parameters();
        if spec.params.len() > parameters.len() {
            return Err(wrong(
                spec,
                format!(
                    "has {} param blocks, but {} parameters",
                    spec.params.len(),
                    parameters.len()
                ),
            ));
        }
        for (i, parameter) in parameters.into_iter().enumerate() {
            let len: usize = parameter.shape.iter().product();
            let end = self.tensors.last().map_or(0, |t| t.offset + t.len);
            self.tensors.push(Tensor {
                name: format!("{}.{}", spec.name, parameter.suffix),
                shape: parameter.shape,
                offset: end.next_multiple_of(TENSOR_ALIGN),
                len,
                param: spec.params.get(i).copied().unwrap_or_default(),
                filler: parameter.filler,
            });
        }
        Ok(())
    }

    fn finish(mut self, spec: &NetSpec, phase: Phase) -> Result<Net, ModelError> {
        let input_blob = self.input_blob.ok_or_else(|| {
            ModelError::Mismatch(format!(
                "{}: no data layer in phase {phase:?}; add one with top: \"data\" top: \"label\"",
                spec.file
            ))
        })?;
        let has_loss = self.nodes.iter().any(|n| n.loss_weight != 0.0);
        if phase == Phase::Train && !has_loss {
            return Err(ModelError::Mismatch(format!(
                "{}: no loss in phase TRAIN; add a layer of type \"SoftmaxWithLoss\"",
                spec.file
            )));
        }
        let scratch = self.plan_gradients();
        Ok(Net {
            arch: self.arch,
            phase,
            batch: self.batch,
            input: self.input,
            classes: self.classes,
            blobs: self.blobs,
            input_blob,
            nodes: self.nodes,
            tensors: self.tensors,
            scratch,
            passes: 0,
            transform: spec
                .transform_param(phase)
                .cloned()
                .unwrap_or(TransformSpec {
                    scale: 1.0,
                    mirror: false,
                    crop_size: 0,
                    mean_file: None,
                    mean_value: Vec::new(),
                }),
            name: spec.name.clone(),
        })
    }

    /// From the losses back: whom a gradient reaches, and who is the first to give a blob its own.
    /// Gives room for one gradient that has to be added.
    fn plan_gradients(&mut self) -> Buffer {
        let mut given = vec![false; self.blobs.len()];
        let mut room = 0;
        for node in self.nodes.iter_mut().rev() {
            node.reached = match node.top {
                Some(top) => given[top],
                None => node.loss_weight != 0.0,
            };
            if !node.reached || node.shares_blob {
                continue;
            }
            for (gives, &bottom) in node.gives.iter_mut().zip(&node.bottoms) {
                if !self.learns[bottom] {
                    continue;
                }
                *gives = if given[bottom] {
                    Gives::Added
                } else {
                    Gives::First
                };
                given[bottom] = true;
                if *gives == Gives::Added {
                    room = room.max(self.blobs[bottom].diff.len());
                }
            }
        }
        Buffer::zeros(room)
    }
}

fn wrong(spec: &LayerSpec, problem: impl Into<String>) -> ModelError {
    ModelError::Layer {
        place: spec.place.clone(),
        layer: spec.name.clone(),
        field: None,
        problem: problem.into(),
    }
}
