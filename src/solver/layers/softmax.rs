//! Softmax over channels (`Softmax`), and the function the loss shares.

use super::{Bottoms, Layer, Params, Pass, Shape, Top, block_len};
use dogwild_kernels::BLOCK;

/// `exp(x) / Σ exp(x)` over the channels of each pixel of each image.
pub(super) fn softmax([channels, height, width]: Shape, from: &[f32], to: &mut [f32]) {
    let plane = height * width * BLOCK;
    for (from, to) in from
        .chunks_exact(channels * plane)
        .zip(to.chunks_exact_mut(channels * plane))
    {
        for at in 0..plane {
            let places = || (0..channels).map(|c| c * plane + at);
            // The largest is subtracted so that nothing overflows.
            let largest = places().map(|i| from[i]).fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for i in places() {
                to[i] = (from[i] - largest).exp();
                sum += to[i];
            }
            places().for_each(|i| to[i] /= sum);
        }
    }
}

pub(crate) struct Softmax {
    shape: Shape,
}

impl Softmax {
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape }
    }
}

impl Layer for Softmax {
    fn reads_top(&self) -> bool {
        true
    }

    fn forward(&mut self, _: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        softmax(self.shape, bottoms.data(0), top);
    }

    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        let [channels, height, width] = self.shape;
        let (plane, block) = (height * width * BLOCK, block_len(self.shape));
        let tops = top
            .data
            .chunks_exact(block)
            .zip(top.diff.chunks_exact(block));
        for ((data, from), to) in tops.zip(diff.chunks_exact_mut(block)) {
            for at in 0..plane {
                let places = || (0..channels).map(|c| c * plane + at);
                let dot: f32 = places().map(|i| data[i] * from[i]).sum();
                places().for_each(|i| to[i] = data[i] * (from[i] - dot));
            }
        }
    }
}
