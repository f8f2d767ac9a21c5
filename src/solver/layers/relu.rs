//! Rectifier (`ReLU`), in place or not.

use pulp::Arch;

use super::{Bottoms, Layer, Params, Pass, Top};
use dogwild_kernels::elementwise::{relu, relu_backward};

pub(crate) struct Relu {
    arch: Arch,
    negative_slope: f32,
}

impl Relu {
    pub(crate) fn new(arch: Arch, negative_slope: f32) -> Self {
        Self {
            arch,
            negative_slope,
        }
    }
}

impl Layer for Relu {
    fn in_place(&self) -> bool {
        true
    }

    fn forward(&mut self, _: Pass<'_>, _: Params<'_>, _: Bottoms<'_>, top: &mut [f32]) {
        relu(self.arch, self.negative_slope, top);
    }

    /// Tells by the top's sign, which a dropout after it (in place) keeps where it lets through.
    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        relu_backward(self.arch, self.negative_slope, top.data, diff);
    }
}
