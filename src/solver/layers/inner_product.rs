//! Fully connected layer (`InnerProduct`): three matrix products over the whole batch, the
//! weights read in the shared buffer itself.

use super::{Bottoms, Gradients, Layer, Parameter, Params, Pass, Shape, Top};
use crate::solver::filler::Filler;
use crate::solver::gemm;
use dogwild_kernels::elementwise::{blocks_to_rows, rows_to_blocks};
use dogwild_kernels::{BLOCK, Buffer};

pub(crate) struct InnerProduct {
    outputs: usize,
    inputs: usize,
    fillers: (Filler, Option<Filler>),
    /// The bottom as `[input][image]`, kept for the gradient of the weights.
    x: Buffer,
    /// The top, or its gradient, as `[output][image]`.
    y: Buffer,
    /// Gradient of the bottom as `[input][image]`.
    dx: Buffer,
    /// The caller makes the gradients from `y` and `x`.
    factors_only: bool,
}

impl InnerProduct {
    pub(crate) fn new(
        bottom: Shape,
        outputs: usize,
        fillers: (Filler, Option<Filler>),
        blocks: usize,
    ) -> Self {
        let inputs = bottom.iter().product();
        let images = blocks * BLOCK;
        Self {
            outputs,
            inputs,
            fillers,
            x: Buffer::zeros(inputs * images),
            y: Buffer::zeros(outputs * images),
            dx: Buffer::zeros(inputs * images),
            factors_only: false,
        }
    }
}

impl Layer for InnerProduct {
    fn parameters(&self) -> Vec<Parameter> {
        let weight = Parameter {
            suffix: "weight",
            shape: vec![self.outputs, self.inputs],
            filler: self.fillers.0,
        };
        let bias = self.fillers.1.map(|filler| Parameter {
            suffix: "bias",
            shape: vec![self.outputs],
            filler,
        });
        std::iter::once(weight).chain(bias).collect()
    }

    fn forward(&mut self, _: Pass<'_>, params: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        let Some(weight) = params.weight else { return };
        blocks_to_rows(bottoms.data(0), self.inputs, &mut self.x);
        let images = self.x.len() / self.inputs;
        if let Some(bias) = params.bias {
            for (o, row) in self.y.chunks_exact_mut(images).enumerate() {
                row.fill(bias.load(o));
            }
        }
        let keep = params.bias.is_some();
        gemm::weights_times(
            weight,
            [self.outputs, self.inputs],
            false,
            &self.x,
            &mut self.y,
            keep,
        );
        rows_to_blocks(&self.y, self.outputs, top);
    }

    fn backward_params(&mut self, _: Bottoms<'_>, top_diff: &[f32], gradients: Gradients<'_>) {
        blocks_to_rows(top_diff, self.outputs, &mut self.y);
        if self.factors_only {
            return;
        }
        let images = self.x.len() / self.inputs;
        let keep = gradients.keep;
        gemm::weight_gradient(
            [self.outputs, self.inputs],
            &self.y,
            &self.x,
            gradients.weight,
            keep,
        );
        if let Some(bias) = gradients.bias {
            for (b, row) in bias.iter_mut().zip(self.y.chunks_exact(images)) {
                *b = if keep { *b } else { 0.0 } + row.iter().sum::<f32>();
            }
        }
    }

    fn factored(&self) -> Option<[usize; 2]> {
        Some([self.outputs, self.inputs])
    }

    fn keep_factors(&mut self, yes: bool) {
        self.factors_only = yes;
    }

    fn factors(&self) -> Option<(&[f32], &[f32])> {
        Some((&self.y, &self.x))
    }

    /// Comes after [`Layer::backward_params`], which has laid the top's gradient out.
    fn backward_data(
        &mut self,
        _: Pass<'_>,
        params: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        _: Top<'_>,
        diff: &mut [f32],
    ) {
        let Some(weight) = params.weight else { return };
        gemm::weights_times(
            weight,
            [self.outputs, self.inputs],
            true,
            &self.y,
            &mut self.dx,
            false,
        );
        rows_to_blocks(&self.dx, self.inputs, diff);
    }
}
