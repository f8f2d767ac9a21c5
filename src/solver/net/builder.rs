//! Builds a [`Net`]: gives names their blobs and layers their shapes, and plans the backward pass.

use std::collections::HashMap;

use pulp::Arch;

use super::super::error::ModelError;
use super::super::layers::{self, Layer, Shape};
use super::super::net_spec::{LayerOp, LayerSpec, NetSpec, Phase, TransformSpec};
use super::{Blob, Gives, Net, Node, TENSOR_ALIGN, Tensor};
use dogwild_kernels::{BLOCK, Buffer};

/// A name's present meaning while the net is built.
#[derive(Clone, Copy)]
enum Named {
    Blob(usize),
    Label,
}

pub(super) struct Builder {
    arch: Arch,
    batch: usize,
    blocks: usize,
    input: Shape,
    classes: usize,
    blobs: Vec<Blob>,
    /// Per blob: it depends on a parameter, so its gradient is wanted.
    learns: Vec<bool>,
    /// Per blob: which layers have read it so far, and whether its own layer needs it unchanged.
    readers: Vec<Vec<String>>,
    fixed: Vec<Option<String>>,
    names: HashMap<String, Named>,
    input_blob: Option<usize>,
    nodes: Vec<Node>,
    tensors: Vec<Tensor>,
    seen: Vec<String>,
}

impl Builder {
    pub(super) fn new(arch: Arch, batch: usize, input: Shape, classes: usize) -> Self {
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

    pub(super) fn add(&mut self, spec: &LayerSpec) -> Result<(), ModelError> {
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

    /// An in-place layer must be able to, and no other layer may still need the old values.
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

    pub(super) fn finish(mut self, spec: &NetSpec, phase: Phase) -> Result<Net, ModelError> {
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

    /// From the losses back: which layers a gradient reaches, and which is the first to give a blob
    /// its own. Returns memory for one gradient that has to be added.
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
