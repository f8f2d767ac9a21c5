//! Dropout (`Dropout`): training scales what it keeps, so testing does nothing.

use pulp::Arch;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Bottoms, Layer, Params, Pass, Top};
use dogwild_kernels::elementwise::multiply;

pub(crate) struct Dropout {
    arch: Arch,
    ratio: f32,
    seed: u64,
    /// 0 or 1 / (1 - ratio), per value.
    mask: Vec<f32>,
}

impl Dropout {
    pub(crate) fn new(arch: Arch, ratio: f32, seed: u64) -> Self {
        Self {
            arch,
            ratio,
            seed,
            mask: Vec::new(),
        }
    }
}

impl Layer for Dropout {
    fn in_place(&self) -> bool {
        true
    }

    fn forward(&mut self, pass: Pass<'_>, _: Params<'_>, _: Bottoms<'_>, top: &mut [f32]) {
        if !pass.train {
            return;
        }
        // The mask depends on seed and pass alone, so that a pass can be repeated.
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(
            self.seed ^ pass.count.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        let scale = 1.0 / (1.0 - self.ratio);
        self.mask.clear();
        self.mask.extend((0..top.len()).map(|_| {
            if rng.random::<f32>() < self.ratio {
                0.0
            } else {
                scale
            }
        }));
        multiply(self.arch, &self.mask, top);
    }

    fn backward_data(
        &mut self,
        pass: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        _: usize,
        _: Top<'_>,
        diff: &mut [f32],
    ) {
        if pass.train {
            multiply(self.arch, &self.mask, diff);
        }
    }
}
