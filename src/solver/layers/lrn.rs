//! Local response normalisation (`LRN`), across channels or within one (Krizhevsky 2012):
//! `y = x * s^-beta` with `s = k + alpha/n * Σ x²` over a neighbourhood of n.

use super::{Bottoms, Layer, Params, Pass, Shape, Top, block_len};
use dogwild_kernels::{BLOCK, Buffer};

pub(crate) struct Lrn {
    shape: Shape,
    size: usize,
    alpha: f32,
    beta: f32,
    k: f32,
    within_channel: bool,
    /// `s` of each value.
    scale: Buffer,
    /// One block: squares, then ratios.
    scratch: Buffer,
    /// One block of sums over rows.
    rows: Buffer,
}

impl Lrn {
    pub(crate) fn new(
        shape: Shape,
        size: usize,
        [alpha, beta, k]: [f32; 3],
        within_channel: bool,
        blocks: usize,
    ) -> Self {
        let block = block_len(shape);
        // Caffe takes n as the area within a channel, and ignores k there.
        let (n, k) = if within_channel {
            (size * size, 1.0)
        } else {
            (size, k)
        };
        Self {
            shape,
            size,
            alpha: alpha / n as f32,
            beta,
            k,
            within_channel,
            scale: Buffer::zeros(block * blocks),
            scratch: Buffer::zeros(block),
            rows: Buffer::zeros(if within_channel { block } else { 0 }),
        }
    }

    /// Sums of `from` over the neighbourhood of each value of one block.
    fn neighbourhood(&mut self, to: &mut [f32]) {
        let [channels, height, width] = self.shape;
        if self.within_channel {
            sum_along(
                &self.scratch,
                &mut self.rows,
                [channels * height, width, BLOCK],
                self.size / 2,
            );
            sum_along(
                &self.rows,
                to,
                [channels, height, width * BLOCK],
                self.size / 2,
            );
        } else {
            sum_along(
                &self.scratch,
                to,
                [1, channels, height * width * BLOCK],
                self.size / 2,
            );
        }
    }
}

/// `to[o][i] = Σ from[o][j]` over `j` from `i - reach` to `i + reach`, for lines of `line` values.
fn sum_along(from: &[f32], to: &mut [f32], [outer, count, line]: [usize; 3], reach: usize) {
    for o in 0..outer {
        let at = |i: usize| (o * count + i) * line..(o * count + i + 1) * line;
        for i in 0..count {
            let to = &mut to[at(i)];
            to.fill(0.0);
            for j in i.saturating_sub(reach)..(i + reach + 1).min(count) {
                to.iter_mut().zip(&from[at(j)]).for_each(|(t, f)| *t += f);
            }
        }
    }
}

/// `s^-beta`; the exponent of all known models without a call to `powf`.
fn power(s: f32, beta: f32) -> f32 {
    if beta == 0.75 {
        let root = s.sqrt();
        1.0 / (root * root.sqrt())
    } else {
        s.powf(-beta)
    }
}

impl Layer for Lrn {
    fn reads_top(&self) -> bool {
        true
    }

    fn forward(&mut self, _: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        let block = block_len(self.shape);
        let mut scale = std::mem::take(&mut self.scale);
        let blocks = bottoms
            .data(0)
            .chunks_exact(block)
            .zip(top.chunks_exact_mut(block));
        for ((x, y), s) in blocks.zip(scale.chunks_exact_mut(block)) {
            self.scratch.iter_mut().zip(x).for_each(|(q, x)| *q = x * x);
            self.neighbourhood(s);
            for ((y, x), s) in y.iter_mut().zip(x).zip(s) {
                *s = self.k + self.alpha * *s;
                *y = x * power(*s, self.beta);
            }
        }
        self.scale = scale;
    }

    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        bottoms: Bottoms<'_>,
        _: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        let block = block_len(self.shape);
        let scale = std::mem::take(&mut self.scale);
        let factor = 2.0 * self.alpha * self.beta;
        let tops = top
            .data
            .chunks_exact(block)
            .zip(top.diff.chunks_exact(block));
        let rest = bottoms
            .data(0)
            .chunks_exact(block)
            .zip(scale.chunks_exact(block));
        for (((y, dy), (x, s)), dx) in tops.zip(rest).zip(diff.chunks_exact_mut(block)) {
            for (r, ((y, dy), s)) in self.scratch.iter_mut().zip(y.iter().zip(dy).zip(s)) {
                *r = dy * y / s;
            }
            self.neighbourhood(dx);
            for ((dx, x), (dy, s)) in dx.iter_mut().zip(x).zip(dy.iter().zip(s)) {
                *dx = dy * power(*s, self.beta) - factor * x * *dx;
            }
        }
        self.scale = scale;
    }
}
