//! The gradient of a convolution's weights and bias: for each pair of an output channel and a
//! kernel tap the sum over images and pixels of gradient × input.
//!
//! A register tile is up to 5 output channels × 5 taps of one kernel row. Each accumulates over all
//! pixels of a block, and is added up across its lanes once at the end.

use pulp::{Arch, Simd};

use super::Window;
use super::{BLOCK, Buffer, pixels, tiles, with_block_vectors};

/// Geometry of one convolution, and memory for its padded input.
pub struct WeightGradient {
    window: Window,
    groups: usize,
    /// Channels per group.
    inputs: usize,
    outputs: usize,
    image: [usize; 2],
    out: [usize; 2],
    /// Per kernel row the pairs of pixels it joins: of the padded input (for the first
    /// kernel column) and of the output. One flat list, so that the sums stay in registers.
    pairs: Vec<Vec<(u32, u32)>>,
    /// One block of the input with its columns padded, so that all taps of a kernel row are
    /// valid for the same pixels. Empty if there is no padding.
    padded: Buffer,
}

impl WeightGradient {
    /// A plan for pictures of `image` rows and columns, and gradients of `out`.
    pub fn new(
        window: &Window,
        groups: usize,
        [inputs, outputs]: [usize; 2],
        image: [usize; 2],
        out: [usize; 2],
    ) -> Self {
        let padded_width = image[1] + 2 * window.pad[1];
        let room = if window.pad[1] == 0 {
            0
        } else {
            groups * inputs * image[0] * padded_width * BLOCK
        };
        let mut shape = Self {
            window: *window,
            groups,
            inputs,
            outputs,
            image,
            out,
            pairs: Vec::new(),
            padded: Buffer::zeros(room),
        };
        shape.pairs = (0..window.kernel[0]).map(|ky| shape.pairs_of(ky)).collect();
        shape
    }

    fn width(&self) -> usize {
        self.image[1] + 2 * self.window.pad[1]
    }

    /// Pixels joined by kernel row `ky`: output rows for which it lies inside the image.
    fn pairs_of(&self, ky: usize) -> Vec<(u32, u32)> {
        let (stride, pad) = (self.window.stride, self.window.pad[0]);
        let mut pairs = Vec::new();
        for oy in 0..self.out[0] {
            let row = oy * stride[0] + ky * self.window.dilation[0];
            let Some(y) = row.checked_sub(pad).filter(|&y| y < self.image[0]) else {
                continue;
            };
            for ox in 0..self.out[1] {
                let input = y * self.width() + ox * stride[1];
                pairs.push((input as u32, (oy * self.out[1] + ox) as u32));
            }
        }
        pairs
    }

    /// Adds the gradients of all blocks to `weights` (`[output][input][ky][kx]`) and `bias`.
    pub fn add(
        &mut self,
        arch: Arch,
        input: &[f32],
        top_diff: &[f32],
        weights: &mut [f32],
        mut bias: Option<&mut [f32]>,
    ) {
        let in_block = self.groups * self.inputs * self.image[0] * self.image[1] * BLOCK;
        let out_block = self.groups * self.outputs * self.out[0] * self.out[1] * BLOCK;
        for (input, diff) in input
            .chunks_exact(in_block)
            .zip(top_diff.chunks_exact(out_block))
        {
            let mut padded = std::mem::take(&mut self.padded);
            if !padded.is_empty() {
                self.pad(input, &mut padded);
            }
            let input = if padded.is_empty() { input } else { &padded };
            arch.dispatch(Run {
                shape: self,
                input,
                diff,
                weights,
                bias: bias.as_deref_mut(),
            });
            self.padded = padded;
        }
    }

    fn pad(&self, input: &[f32], padded: &mut [f32]) {
        let (row, pad) = (self.image[1] * BLOCK, self.window.pad[1] * BLOCK);
        // The margins are zero from the start and are never written.
        for (from, to) in input
            .chunks_exact(row)
            .zip(padded.chunks_exact_mut(self.width() * BLOCK))
        {
            to[pad..pad + row].copy_from_slice(from);
        }
    }
}

struct Run<'a> {
    shape: &'a WeightGradient,
    input: &'a [f32],
    diff: &'a [f32],
    weights: &'a mut [f32],
    bias: Option<&'a mut [f32]>,
}

with_block_vectors!(Run<'_>);

impl Run<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(mut self, simd: S) {
        let shape = self.shape;
        let (in_plane, out_plane) = (shape.image[0] * shape.width(), shape.out[0] * shape.out[1]);
        let input = pixels::<S, NV>(self.input);
        let diff = pixels::<S, NV>(self.diff);
        let taps = shape.window.kernel[0] * shape.window.kernel[1];
        let most = if S::REGISTER_COUNT >= 32 { 5 } else { 2 };
        for g in 0..shape.groups {
            for (first, size) in tiles(shape.outputs, most) {
                let o0 = g * shape.outputs + first;
                let diff = &diff[o0 * out_plane..][..size * out_plane];
                if let Some(bias) = self.bias.as_deref_mut() {
                    for (b, plane) in bias[o0..o0 + size]
                        .iter_mut()
                        .zip(diff.chunks_exact(out_plane))
                    {
                        *b += total::<S, NV>(simd, plane);
                    }
                }
                for c in 0..shape.inputs {
                    let plane = &input[(g * shape.inputs + c) * in_plane..][..in_plane];
                    let at = (o0 * shape.inputs + c) * taps;
                    let row = Row {
                        shape,
                        plane,
                        diff,
                        weights: &mut self.weights[at..],
                    };
                    match size {
                        1 => row.kernel_rows::<1>(simd),
                        2 => row.kernel_rows::<2>(simd),
                        3 => row.kernel_rows::<3>(simd),
                        4 => row.kernel_rows::<4>(simd),
                        _ => row.kernel_rows::<5>(simd),
                    }
                }
            }
        }
    }
}

/// Sum of all lanes of all pixels.
#[inline(always)]
fn total<S: Simd, const NV: usize>(simd: S, plane: &[[S::f32s; NV]]) -> f32 {
    let mut acc = [[simd.splat_f32s(0.0); NV]; 4];
    for (i, pixel) in plane.iter().enumerate() {
        for (a, &p) in acc[i % 4].iter_mut().zip(pixel) {
            *a = simd.add_f32s(*a, p);
        }
    }
    acc.iter().flatten().map(|&a| simd.reduce_sum_f32s(a)).sum()
}

/// One input channel against one tile of output channels.
struct Row<'a, S: Simd, const NV: usize> {
    shape: &'a WeightGradient,
    plane: &'a [[S::f32s; NV]],
    diff: &'a [[S::f32s; NV]],
    /// From the first output channel's gradient for this input channel on.
    weights: &'a mut [f32],
}

impl<S: Simd, const NV: usize> Row<'_, S, NV> {
    #[inline(always)]
    fn kernel_rows<const OT: usize>(mut self, simd: S) {
        for ky in 0..self.shape.window.kernel[0] {
            for (kx, size) in tiles(self.shape.window.kernel[1], 5) {
                match size {
                    1 => self.taps::<OT, 1>(simd, ky, kx),
                    2 => self.taps::<OT, 2>(simd, ky, kx),
                    3 => self.taps::<OT, 3>(simd, ky, kx),
                    4 => self.taps::<OT, 4>(simd, ky, kx),
                    _ => self.taps::<OT, 5>(simd, ky, kx),
                }
            }
        }
    }

    /// `KT` taps from `(ky, kx)` on.
    #[inline(always)]
    fn taps<const OT: usize, const KT: usize>(&mut self, simd: S, ky: usize, kx: usize) {
        let mut sums = [[simd.splat_f32s(0.0); KT]; OT];
        self.products(simd, ky, kx, &mut sums);
        let [kernel_height, kernel_width] = self.shape.window.kernel;
        let step = self.shape.inputs * kernel_height * kernel_width;
        for (o, sums) in sums.iter().enumerate() {
            let to = &mut self.weights[o * step + ky * kernel_width + kx..][..KT];
            for (to, &sum) in to.iter_mut().zip(sums) {
                *to += simd.reduce_sum_f32s(sum);
            }
        }
    }

    /// The sums, lane by lane. Writes them once, at the end: adding up across lanes is too much
    /// code to be unrolled, and would keep the sums in memory all along if it were done here.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    fn products<const OT: usize, const KT: usize>(
        &self,
        simd: S,
        ky: usize,
        kx: usize,
        sums: &mut [[S::f32s; KT]; OT],
    ) {
        let shape = self.shape;
        let dilation = shape.window.dilation[1];
        let out_plane = shape.out[0] * shape.out[1];
        let row = &self.plane[kx * dilation..];
        let mut diffs: [&[[S::f32s; NV]]; OT] = [&[]; OT];
        for o in 0..OT {
            diffs[o] = &self.diff[o * out_plane..][..out_plane];
        }
        let mut acc = [[simd.splat_f32s(0.0); KT]; OT];
        // OT + KT loads for OT * KT products: each gradient serves all taps of the tile, each input
        // pixel all output channels.
        for &(input, output) in &shape.pairs[ky] {
            let mut x = [[simd.splat_f32s(0.0); NV]; KT];
            for j in 0..KT {
                // In range by construction; see `correlate`.
                x[j] = row[(input as usize).wrapping_add(j.wrapping_mul(dilation))];
            }
            for o in 0..OT {
                let d = diffs[o][output as usize];
                for j in 0..KT {
                    for v in 0..NV {
                        acc[o][j] = simd.mul_add_e_f32s(d[v], x[j][v], acc[o][j]);
                    }
                }
            }
        }
        *sums = acc;
    }
}
