//! The layers: each knows its own shapes, its forward pass and its gradients, and nothing of
//! the net around it. Blobs are in the layout of `kernels`.

mod concat;
mod convolution;
mod dropout;
mod inner_product;
mod loss;
mod lrn;
mod pooling;
mod relu;
mod softmax;

#[cfg(test)]
mod tests;

use std::ops::Range;

use pulp::Arch;

use super::filler::Filler;
use super::net_spec::LayerOp;
use crate::weights::WeightsView;
use dogwild_kernels::{BLOCK, Buffer};

/// Channels, height, width of one image.
pub(crate) type Shape = [usize; 3];

/// Values of one blob for the whole batch, and the gradient of the loss with respect to them.
pub(crate) struct Blob {
    pub(crate) shape: Shape,
    pub(crate) data: Buffer,
    /// Empty if nothing below it learns.
    pub(crate) diff: Buffer,
}

/// What all layers of one pass see.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    /// Images in this batch; the rest of the last block is padding.
    pub(crate) images: usize,
    pub(crate) labels: &'a [u32],
    /// Training: dropout drops.
    pub(crate) train: bool,
    /// Counts passes; dropout derives its mask from it.
    pub(crate) count: u64,
}

/// Weight and bias of one layer in the shared buffer.
#[derive(Clone, Copy)]
pub(crate) struct Params<'a> {
    pub(crate) weight: Option<WeightsView<'a>>,
    pub(crate) bias: Option<WeightsView<'a>>,
}

/// Gradients of one layer's weight and bias, in the layout of the shared buffer.
pub(crate) struct Gradients<'a> {
    pub(crate) weight: &'a mut [f32],
    pub(crate) bias: Option<&'a mut [f32]>,
    /// Add to what is there instead of overwriting it.
    pub(crate) keep: bool,
}

/// The blobs a layer reads.
#[derive(Clone, Copy)]
pub(crate) struct Bottoms<'a> {
    pub(crate) blobs: &'a [Blob],
    pub(crate) indices: &'a [usize],
}

impl<'a> Bottoms<'a> {
    pub(crate) fn data(&self, i: usize) -> &'a [f32] {
        &self.blobs[self.indices[i]].data
    }
}

/// What a loss or accuracy layer found in one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// Sum of the losses of all images that count, not normalised (0 for accuracy).
    pub(crate) loss_sum: f64,
    /// What the sum is divided by.
    pub(crate) normaliser: f64,
    /// Images whose label was among the best.
    pub(crate) correct: usize,
    /// Images that count.
    pub(crate) count: usize,
    pub(crate) is_loss: bool,
}

/// A parameter tensor that a layer asks for.
pub(crate) struct Parameter {
    pub(crate) suffix: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) filler: Filler,
}

/// One layer of a net. A layer may change its top in place of its bottom if [`Layer::in_place`].
pub(crate) trait Layer: Send {
    /// Weight, then bias, if it has any.
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Works on its top alone: the net has copied the bottom there, unless they are the same blob.
    fn in_place(&self) -> bool {
        false
    }

    /// Whether the backward pass reads the top's data, so that no other layer may change it.
    fn reads_top(&self) -> bool {
        false
    }

    /// Fills `top` from the bottoms.
    fn forward(
        &mut self,
        pass: Pass<'_>,
        params: Params<'_>,
        bottoms: Bottoms<'_>,
        top: &mut [f32],
    );

    /// Gradients of the parameters.
    fn backward_params(
        &mut self,
        _bottoms: Bottoms<'_>,
        _top_diff: &[f32],
        _gradients: Gradients<'_>,
    ) {
    }

    /// Gradient of bottom `i` into `diff` (overwrites; in place: changes the top's gradient).
    fn backward_data(
        &mut self,
        pass: Pass<'_>,
        params: Params<'_>,
        bottoms: Bottoms<'_>,
        i: usize,
        top: Top<'_>,
        diff: &mut [f32],
    );

    /// Outputs and inputs of a layer whose gradient is a sum of outer products, one per image.
    fn factored(&self) -> Option<[usize; 2]> {
        None
    }

    /// From now on (or no longer) leaves the gradients of its parameters out: a caller that needs
    /// them takes [`Layer::factors`].
    fn keep_factors(&mut self, _yes: bool) {}

    /// After [`Layer::backward_params`]: gradients of the top as `[output][image]` and the bottom
    /// as `[input][image]`, whole blocks of images.
    fn factors(&self) -> Option<(&[f32], &[f32])> {
        None
    }

    /// What the last forward pass found, for losses and accuracies.
    fn outcome(&self) -> Option<Outcome> {
        None
    }
}

/// A layer's output and the gradient of the loss with respect to it.
#[derive(Clone, Copy)]
pub(crate) struct Top<'a> {
    pub(crate) data: &'a [f32],
    /// Empty for losses and in place.
    pub(crate) diff: &'a [f32],
    /// Weight of this loss in the objective.
    pub(crate) loss_weight: f32,
}

/// A layer and its top's shape (`None`: no blob, only an outcome).
pub(crate) type Built = (Box<dyn Layer>, Option<Shape>);

/// Builds the layer for `op` on bottoms of these shapes.
///
/// # Errors
/// What is wrong with the bottoms' shapes, to be told with the layer's name.
pub(crate) fn build(
    op: &LayerOp,
    arch: Arch,
    bottoms: &[Shape],
    blocks: usize,
    seed: u64,
) -> Result<Built, String> {
    if let LayerOp::Concat = op {
        let (layer, top) = concat::Concat::new(bottoms)?;
        return Ok((Box::new(layer), Some(top)));
    }
    let &[bottom] = bottoms else {
        return Err(format!("needs exactly one bottom, has {}", bottoms.len()));
    };
    let same = Some(bottom);
    Ok(match op {
        LayerOp::Convolution { .. } | LayerOp::InnerProduct { .. } => {
            return build_learning(op, arch, bottom, blocks);
        }
        LayerOp::Pooling {
            method,
            window,
            global,
            floor,
        } => {
            let rounding = (*global, *floor);
            let layer = pooling::Pooling::new(arch, bottom, *method, window, rounding, blocks)?;
            (Box::new(layer.0), Some(layer.1))
        }
        LayerOp::Relu { negative_slope } => {
            (Box::new(relu::Relu::new(arch, *negative_slope)), same)
        }
        LayerOp::Lrn {
            local_size,
            alpha,
            beta,
            k,
            within_channel,
        } => {
            let factors = [*alpha, *beta, *k];
            let layer = lrn::Lrn::new(bottom, *local_size, factors, *within_channel, blocks);
            (Box::new(layer), same)
        }
        LayerOp::Dropout { ratio } => (Box::new(dropout::Dropout::new(arch, *ratio, seed)), same),
        LayerOp::Softmax => (Box::new(softmax::Softmax::new(bottom)), same),
        LayerOp::SoftmaxWithLoss {
            ignore_label,
            normalization,
        } => {
            let rules = (*ignore_label, *normalization);
            (
                Box::new(loss::SoftmaxWithLoss::new(bottom, rules, blocks)?),
                None,
            )
        }
        LayerOp::Accuracy {
            top_k,
            ignore_label,
        } => (
            Box::new(loss::Accuracy::new(bottom, *top_k, *ignore_label)?),
            None,
        ),
        LayerOp::Data { .. } | LayerOp::Concat => return Err("has no bottom of its own".to_owned()),
    })
}

/// The layers with parameters.
fn build_learning(op: &LayerOp, arch: Arch, bottom: Shape, blocks: usize) -> Result<Built, String> {
    Ok(match op {
        LayerOp::Convolution {
            num_output,
            window,
            group,
            bias,
            weight_filler,
            bias_filler,
        } => {
            let fillers = (*weight_filler, bias.then_some(*bias_filler));
            let sizes = [*num_output, *group];
            let layer = convolution::Convolution::new(arch, bottom, sizes, window, fillers)?;
            (Box::new(layer.0), Some(layer.1))
        }
        LayerOp::InnerProduct {
            num_output,
            bias,
            weight_filler,
            bias_filler,
        } => {
            let fillers = (*weight_filler, bias.then_some(*bias_filler));
            let layer = inner_product::InnerProduct::new(bottom, *num_output, fillers, blocks);
            (Box::new(layer), Some([*num_output, 1, 1]))
        }
        _ => return Err("has no parameters".to_owned()),
    })
}

/// Values of one image in a block.
fn block_len(shape: Shape) -> usize {
    shape.iter().product::<usize>() * BLOCK
}

/// Where channel range `channels` of each block of `shape` lies.
fn channels_of(shape: Shape, channels: Range<usize>) -> Range<usize> {
    let plane = shape[1] * shape[2] * BLOCK;
    channels.start * plane..channels.end * plane
}
