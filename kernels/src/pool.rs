//! Pooling: the largest or the mean value of each window, and the backward pass.

use std::ops::Range;

use pulp::{Arch, Simd};

use super::{BLOCK, pixels, pixels_mut, with_block_vectors};

/// Where the windows lie. Windows are clipped to the image; `divisor` counts padding too.
pub struct Windows {
    /// Per output pixel.
    windows: Vec<Window>,
    width: usize,
    inputs: usize,
    /// Every input pixel lies in exactly one window.
    tiling: bool,
}

/// First input pixel, rows, columns, and 1 / divisor.
type Window = (u32, u32, u32, f32);

impl Windows {
    /// Caffe's windows: start, clipping and divisor as in its `PoolingLayer`.
    pub fn new(
        kernel: [usize; 2],
        stride: [usize; 2],
        pad: [usize; 2],
        image: [usize; 2],
        out: [usize; 2],
    ) -> Self {
        // Start, length inside the image, length with padding, along one axis.
        let along = |axis: usize, o: usize| {
            let from = o * stride[axis];
            let to = (from + kernel[axis]).min(image[axis] + 2 * pad[axis]);
            let (first, last) = (from.max(pad[axis]), to.min(image[axis] + pad[axis]));
            (first - pad[axis], last - first, to - from)
        };
        let mut windows = Vec::with_capacity(out[0] * out[1]);
        for (y, rows, rows_padded) in (0..out[0]).map(|o| along(0, o)) {
            for (x, columns, columns_padded) in (0..out[1]).map(|o| along(1, o)) {
                let scale = 1.0 / (rows_padded * columns_padded) as f32;
                windows.push((
                    (y * image[1] + x) as u32,
                    rows as u32,
                    columns as u32,
                    scale,
                ));
            }
        }
        let inputs = image[0] * image[1];
        let covered: u32 = windows.iter().map(|w| w.1 * w.2).sum();
        let tiling = stride == kernel && covered as usize == inputs;
        Self {
            windows,
            width: image[1],
            inputs,
            tiling,
        }
    }

    /// Largest value of each window; `which` gets its place in the (clipped) window.
    pub fn max_forward(&self, arch: Arch, bottom: &[f32], top: &mut [f32], which: &mut [f32]) {
        arch.dispatch(MaxForward {
            windows: self,
            bottom,
            top,
            which,
        });
    }

    /// Sends each gradient to the pixel the largest value came from.
    pub fn max_backward(
        &self,
        arch: Arch,
        top_diff: &[f32],
        which: &[f32],
        bottom_diff: &mut [f32],
    ) {
        arch.dispatch(MaxBackward {
            windows: self,
            top_diff,
            which,
            bottom_diff,
        });
    }

    /// Mean of each window.
    pub fn mean_forward(&self, arch: Arch, bottom: &[f32], top: &mut [f32]) {
        arch.dispatch(MeanForward {
            windows: self,
            bottom,
            top,
        });
    }

    /// Spreads each gradient over its window.
    pub fn mean_backward(&self, arch: Arch, top_diff: &[f32], bottom_diff: &mut [f32]) {
        arch.dispatch(MeanBackward {
            windows: self,
            top_diff,
            bottom_diff,
        });
    }

    /// Input pixels of one window, row by row.
    #[inline(always)]
    fn rows(
        &self,
        &(first, rows, columns, _): &Window,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let (first, width) = (first as usize, self.width);
        (0..rows as usize).map(move |r| {
            let start = first + r * width;
            start..start + columns as usize
        })
    }
}

struct MaxForward<'a> {
    windows: &'a Windows,
    bottom: &'a [f32],
    top: &'a mut [f32],
    which: &'a mut [f32],
}

with_block_vectors!(MaxForward<'_>);

impl MaxForward<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S) {
        let (inputs, outputs) = (self.windows.inputs, self.windows.windows.len());
        let planes = self.bottom.chunks_exact(inputs * BLOCK);
        let tops = self
            .top
            .chunks_exact_mut(outputs * BLOCK)
            .zip(self.which.chunks_exact_mut(outputs * BLOCK));
        for (plane, (top, which)) in planes.zip(tops) {
            let plane = pixels::<S, NV>(plane);
            let out = pixels_mut::<S, NV>(top)
                .iter_mut()
                .zip(pixels_mut::<S, NV>(which));
            for (window, (top, which)) in self.windows.windows.iter().zip(out) {
                let mut best = [simd.splat_f32s(f32::NEG_INFINITY); NV];
                let mut place = [simd.splat_f32s(0.0); NV];
                let mut i = 0.0;
                for row in self.windows.rows(window) {
                    for x in &plane[row] {
                        let here = simd.splat_f32s(i);
                        i += 1.0;
                        for v in 0..NV {
                            let larger = simd.greater_than_f32s(x[v], best[v]);
                            best[v] = simd.select_f32s(larger, x[v], best[v]);
                            place[v] = simd.select_f32s(larger, here, place[v]);
                        }
                    }
                }
                *top = best;
                *which = place;
            }
        }
    }
}

struct MaxBackward<'a> {
    windows: &'a Windows,
    top_diff: &'a [f32],
    which: &'a [f32],
    bottom_diff: &'a mut [f32],
}

with_block_vectors!(MaxBackward<'_>);

impl MaxBackward<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S) {
        let (inputs, outputs) = (self.windows.inputs, self.windows.windows.len());
        let diffs = self
            .top_diff
            .chunks_exact(outputs * BLOCK)
            .zip(self.which.chunks_exact(outputs * BLOCK));
        let zero = simd.splat_f32s(0.0);
        for (plane, (diff, which)) in self.bottom_diff.chunks_exact_mut(inputs * BLOCK).zip(diffs) {
            if !self.windows.tiling {
                plane.fill(0.0);
            }
            let plane = pixels_mut::<S, NV>(plane);
            let from = pixels::<S, NV>(diff).iter().zip(pixels::<S, NV>(which));
            for (window, (diff, which)) in self.windows.windows.iter().zip(from) {
                let mut i = 0.0;
                for row in self.windows.rows(window) {
                    for to in &mut plane[row] {
                        let place = simd.splat_f32s(i);
                        i += 1.0;
                        for v in 0..NV {
                            let here = simd.equal_f32s(which[v], place);
                            let share = simd.select_f32s(here, diff[v], zero);
                            let old = if self.windows.tiling { zero } else { to[v] };
                            to[v] = simd.add_f32s(old, share);
                        }
                    }
                }
            }
        }
    }
}

struct MeanForward<'a> {
    windows: &'a Windows,
    bottom: &'a [f32],
    top: &'a mut [f32],
}

with_block_vectors!(MeanForward<'_>);

impl MeanForward<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S) {
        let (inputs, outputs) = (self.windows.inputs, self.windows.windows.len());
        let planes = self.bottom.chunks_exact(inputs * BLOCK);
        for (plane, top) in planes.zip(self.top.chunks_exact_mut(outputs * BLOCK)) {
            let plane = pixels::<S, NV>(plane);
            for (window, top) in self.windows.windows.iter().zip(pixels_mut::<S, NV>(top)) {
                let mut sum = [simd.splat_f32s(0.0); NV];
                for row in self.windows.rows(window) {
                    for x in &plane[row] {
                        for v in 0..NV {
                            sum[v] = simd.add_f32s(sum[v], x[v]);
                        }
                    }
                }
                for v in 0..NV {
                    top[v] = simd.mul_f32s(sum[v], simd.splat_f32s(window.3));
                }
            }
        }
    }
}

struct MeanBackward<'a> {
    windows: &'a Windows,
    top_diff: &'a [f32],
    bottom_diff: &'a mut [f32],
}

with_block_vectors!(MeanBackward<'_>);

impl MeanBackward<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S) {
        let (inputs, outputs) = (self.windows.inputs, self.windows.windows.len());
        let diffs = self.top_diff.chunks_exact(outputs * BLOCK);
        for (plane, diff) in self.bottom_diff.chunks_exact_mut(inputs * BLOCK).zip(diffs) {
            plane.fill(0.0);
            let plane = pixels_mut::<S, NV>(plane);
            for (window, diff) in self.windows.windows.iter().zip(pixels::<S, NV>(diff)) {
                let mut share = *diff;
                for share in &mut share {
                    *share = simd.mul_f32s(*share, simd.splat_f32s(window.3));
                }
                for row in self.windows.rows(window) {
                    for to in &mut plane[row] {
                        for v in 0..NV {
                            to[v] = simd.add_f32s(to[v], share[v]);
                        }
                    }
                }
            }
        }
    }
}
