//! Builds a device's net, layer by layer, with its memory; refuses what devices cannot do.
//!
//! Invariant: shapes and tensors are those of the processor's net, which has checked them.

use super::{Blob, DeviceNetError, Op, Places, Stage};
use crate::device::kernels::Geometry;
use crate::device::{Device, DeviceError};
use crate::solver::error::ModelError;
use crate::solver::layers::Shape;
use crate::solver::net::{Net, Node, Tensor};
use crate::solver::net_spec::{LayerOp, LayerSpec, Normalization, PoolMethod, Window};

/// The chain while it is built.
pub(super) struct Chain<'a, D: Device> {
    device: &'a D,
    net: &'a Net,
    images: usize,
    pub(super) stages: Vec<Stage<D::Memory>>,
    pub(super) blobs: Vec<Blob<D::Memory>>,
    /// Words of each blob.
    pub(super) sizes: Vec<usize>,
    /// Name of the last blob; empty: the pictures, whatever they are called.
    top_name: String,
    pub(super) loss_scale: Option<f32>,
}

impl<'a, D: Device> Chain<'a, D> {
    pub(super) fn new(device: &'a D, net: &'a Net) -> Self {
        Self {
            device,
            net,
            images: net.batch_size(),
            stages: Vec::new(),
            blobs: Vec::new(),
            sizes: Vec::new(),
            top_name: String::new(),
            loss_scale: None,
        }
    }

    pub(super) fn blob(&mut self, words: usize) -> Result<usize, DeviceError> {
        self.blobs.push(Blob {
            data: self.device.alloc(words)?,
            diff: self.device.alloc(words)?,
        });
        self.sizes.push(words);
        Ok(self.blobs.len() - 1)
    }

    /// The next layer, whose bottom has to be the blob before.
    pub(super) fn add(&mut self, layer: &LayerSpec) -> Result<(), DeviceNetError> {
        let reads = layer.bottoms.first();
        let follows = self.top_name.is_empty() || reads.is_some_and(|name| *name == self.top_name);
        if !follows || self.loss_scale.is_some() {
            return Err(refuse(
                layer,
                "devices train chains, where each layer reads the one before",
            ));
        }
        let bottom = self.blobs.len() - 1;
        // The processor's net has the same layers, and has checked their shapes.
        let node = self.net.nodes.get(self.stages.len());
        let node = node.ok_or_else(|| refuse(layer, "it has no shape"))?;
        let shape = |blob: usize| self.net.blobs[blob].shape;
        let image = shape(node.bottoms[0]);
        let out = node.top.map_or(image, shape);
        self.words(layer, image)?;
        let out_words = self.words(layer, out)?;
        let op = self.op(layer, node, image, out)?;
        let in_place =
            matches!(op, Op::Loss) || matches!(op, Op::Relu { .. }) && layer.tops.first() == reads;
        let top = match in_place {
            true => bottom,
            false => self.blob(out_words)?,
        };
        self.top_name = layer.tops.first().cloned().unwrap_or_default();
        let learns = matches!(op, Op::Convolution { .. } | Op::InnerProduct { .. });
        let before = self.stages.iter().filter(|stage| stage.layer.is_some());
        let layer = learns.then_some(before.count());
        self.stages.push(Stage {
            op,
            bottom,
            top,
            layer,
        });
        Ok(())
    }

    /// Words of a blob of the whole batch.
    fn words(&self, layer: &LayerSpec, shape: Shape) -> Result<usize, DeviceNetError> {
        let sizes = shape.iter().chain([&self.images]);
        fits(
            layer,
            sizes.fold(1, |words: usize, &size| words.saturating_mul(size)),
        )
    }

    fn op(
        &mut self,
        layer: &LayerSpec,
        node: &Node,
        image: Shape,
        out: Shape,
    ) -> Result<Op<D::Memory>, DeviceNetError> {
        let geometry = |window: &Window, kernel: [usize; 2]| Geometry {
            image,
            kernel,
            stride: window.stride,
            pad: window.pad,
            out: [out[1], out[2]],
            images: self.images,
        };
        Ok(match &layer.op {
            LayerOp::Convolution { group, window, .. }
                if *group == 1 && window.dilation == [1; 2] =>
            {
                let geometry = geometry(window, window.kernel);
                let words = fits(layer, geometry.rows().saturating_mul(geometry.columns()))?;
                Op::Convolution {
                    geometry,
                    places: self.places(node),
                    columns: self.device.alloc(words)?,
                }
            }
            LayerOp::Pooling {
                method: PoolMethod::Max,
                window,
                global,
                ..
            } => {
                let whole = [image[1], image[2]];
                let kernel = if *global { whole } else { window.kernel };
                Op::MaxPool {
                    geometry: geometry(window, kernel),
                    which: self.device.alloc(self.words(layer, out)?)?,
                }
            }
            LayerOp::InnerProduct { .. } => Op::InnerProduct {
                inputs: image.iter().product(),
                places: self.places(node),
            },
            LayerOp::Relu { negative_slope } if *negative_slope >= 0.0 => Op::Relu {
                slope: *negative_slope,
            },
            LayerOp::SoftmaxWithLoss {
                ignore_label: None,
                normalization,
            } => {
                let normaliser = match normalization {
                    Normalization::Valid | Normalization::BatchSize => self.images as f32,
                    Normalization::None => 1.0,
                };
                self.loss_scale = Some(layer.loss_weight / normaliser);
                Op::Loss
            }
            _ => {
                return Err(refuse(
                    layer,
                    "its type or setting does not work on a device; these do: Convolution (one group, no \
                     dilation), Pooling (MAX), InnerProduct, ReLU (slope 0 or more), SoftmaxWithLoss (no ignore_label)",
                ));
            }
        })
    }

    fn places(&self, node: &Node) -> Places {
        let tensors = &self.net.tensors[node.tensors.0..node.tensors.0 + node.tensors.1];
        let place = |tensor: &Tensor| tensor.offset..tensor.offset + tensor.len;
        (place(&tensors[0]), tensors.get(1).map(place))
    }
}

fn refuse(layer: &LayerSpec, problem: &str) -> DeviceNetError {
    DeviceNetError::Model(ModelError::Layer {
        place: layer.place.clone(),
        layer: layer.name.clone(),
        field: None,
        problem: format!("{problem}; train this net on the processor"),
    })
}

fn fits(layer: &LayerSpec, words: usize) -> Result<usize, DeviceNetError> {
    match u32::try_from(words) {
        Ok(_) => Ok(words),
        Err(_) => Err(refuse(
            layer,
            "its batch is 2^32 values or more on a device: use a smaller batch",
        )),
    }
}
