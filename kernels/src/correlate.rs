//! Sums of products over windows of pixels: a convolution's forward pass, and the gradient
//! with respect to its input (the same sum with inputs and outputs exchanged).
//!
//! What padding, stride and dilation do is worked out once, when the net is built, into lists of
//! taps. The loop over them is the same for all. Pixels whose lists are equal up to a shift are
//! done four at a time, so that a register tile is 4 pixels × up to 6 channels × 16 images.

use std::collections::HashMap;

use pulp::{Arch, Simd};

use super::Window;
use super::{BLOCK, pixels, pixels_mut, tiles, with_block_vectors};

/// Output channels of a register tile: 6 × 4 pixels and their operands fill 32 registers.
const TILE: usize = 6;
/// Pixels of a register tile.
const WIDE: usize = 4;

/// One product: the weight's place in the kernel, the input pixel after the group's first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Tap {
    weight: u32,
    input: u32,
}

/// One pixel of the output, or four whose taps are equal up to `input_step`.
#[derive(Clone, Copy)]
struct Group {
    list: u32,
    base: u32,
    output: u32,
    output_step: u32,
    input_step: u32,
    wide: bool,
}

/// Which input pixels each output pixel sums over.
pub struct Correlation {
    lists: Vec<Vec<Tap>>,
    groups: Vec<Group>,
    kernel_pixels: usize,
    inputs: usize,
    outputs: usize,
}

impl Correlation {
    /// The forward pass: image `[h, w]` to `out`.
    pub fn forward(window: &Window, image: [usize; 2], out: [usize; 2]) -> Self {
        let w = *window;
        let along = move |axis: usize, o: usize, k: usize| {
            (o * w.stride[axis] + k * w.dilation[axis])
                .checked_sub(w.pad[axis])
                .filter(|&i| i < image[axis])
        };
        Self::plan(window.kernel, image, out, along)
    }

    /// The gradient of the input: from the gradient of `out` to the image.
    pub fn backward(window: &Window, image: [usize; 2], out: [usize; 2]) -> Self {
        let w = *window;
        let along = move |axis: usize, i: usize, k: usize| {
            (i + w.pad[axis])
                .checked_sub(k * w.dilation[axis])
                .filter(|t| t % w.stride[axis] == 0)
                .map(|t| t / w.stride[axis])
                .filter(|&o| o < out[axis])
        };
        Self::plan(window.kernel, out, image, along)
    }

    /// `along(axis, output, kernel)` is the input coordinate, if it lies inside.
    fn plan(
        kernel: [usize; 2],
        input: [usize; 2],
        output: [usize; 2],
        along: impl Fn(usize, usize, usize) -> Option<usize>,
    ) -> Self {
        let mut known: HashMap<Vec<Tap>, u32> = HashMap::new();
        let mut lists = Vec::new();
        let mut places = Vec::with_capacity(output[0] * output[1]);
        for y in 0..output[0] {
            for x in 0..output[1] {
                let mut taps = Vec::new();
                for ky in 0..kernel[0] {
                    for kx in 0..kernel[1] {
                        if let (Some(iy), Some(ix)) = (along(0, y, ky), along(1, x, kx)) {
                            taps.push((iy * input[1] + ix, ky * kernel[1] + kx));
                        }
                    }
                }
                taps.sort_unstable();
                let base = taps.first().map_or(0, |t| t.0);
                let list: Vec<Tap> = taps
                    .iter()
                    .map(|&(i, k)| Tap {
                        weight: k as u32,
                        input: (i - base) as u32,
                    })
                    .collect();
                let id = *known.entry(list).or_insert_with_key(|list| {
                    lists.push(list.clone());
                    lists.len() as u32 - 1
                });
                places.push((id, base as u32));
            }
        }
        Self {
            lists,
            groups: group(&places, output),
            kernel_pixels: kernel[0] * kernel[1],
            inputs: input[0] * input[1],
            outputs: output[0] * output[1],
        }
    }
}

/// Joins pixels four by four, first along rows, then what is left along columns.
fn group(places: &[(u32, u32)], [height, width]: [usize; 2]) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut left = vec![true; places.len()];
    // Pixels near an edge have shorter lists than those inside. Along rows, that leaves the left
    // and right margins over; down the columns these are alike from row to row.
    for (step, outer, inner) in [(1, height, width), (width, width, height)] {
        for line in 0..outer {
            let at = |i: usize| {
                if step == 1 {
                    line * width + i
                } else {
                    i * width + line
                }
            };
            let mut i = 0;
            while i + WIDE <= inner {
                let first = places[at(i)];
                let shift = places[at(i + 1)].1.wrapping_sub(first.1);
                let equal = (0..WIDE).all(|p| {
                    left[at(i + p)]
                        && places[at(i + p)] == (first.0, first.1.wrapping_add(shift * p as u32))
                }) && shift < u32::MAX / 8;
                if equal {
                    groups.push(Group {
                        list: first.0,
                        base: first.1,
                        output: at(i) as u32,
                        output_step: step as u32,
                        input_step: shift,
                        wide: true,
                    });
                    (0..WIDE).for_each(|p| left[at(i + p)] = false);
                    i += WIDE;
                } else {
                    i += 1;
                }
            }
        }
    }
    for (i, &(list, base)) in places.iter().enumerate().filter(|(i, _)| left[*i]) {
        groups.push(Group {
            list,
            base,
            output: i as u32,
            output_step: 0,
            input_step: 0,
            wide: false,
        });
    }
    groups
}

/// A layer's weights in the order the loop reads them: for each tile of output channels
/// `[input channel][kernel pixel][output channel of the tile]`.
pub struct Packed {
    values: Vec<f32>,
    groups: usize,
    inputs: usize,
    outputs: usize,
    kernel_pixels: usize,
}

impl Packed {
    /// Memory for `groups` times `outputs` × `inputs` channels.
    pub fn new(groups: usize, inputs: usize, outputs: usize, kernel_pixels: usize) -> Self {
        Self {
            values: vec![0.0; groups * inputs * outputs * kernel_pixels],
            groups,
            inputs,
            outputs,
            kernel_pixels,
        }
    }

    /// Input channels of one group.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Fills it; `weight(group, output, input, kernel pixel)` is where that weight lies in `from`.
    pub fn fill(&mut self, from: &[f32], weight: impl Fn(usize, usize, usize, usize) -> usize) {
        let mut to = self.values.iter_mut();
        for g in 0..self.groups {
            for (first, size) in tiles(self.outputs, TILE) {
                for c in 0..self.inputs {
                    for k in 0..self.kernel_pixels {
                        for (o, v) in (first..first + size).zip(&mut to) {
                            *v = from[weight(g, o, c, k)];
                        }
                    }
                }
            }
        }
    }
}

/// `output[o] = bias[o] + Σ weight × input` for every pixel of every block.
pub fn correlate(
    arch: Arch,
    plan: &Correlation,
    packed: &Packed,
    bias: Option<&[f32]>,
    input: &[f32],
    output: &mut [f32],
) {
    arch.dispatch(Run {
        plan,
        packed,
        bias,
        input,
        output,
    });
}

struct Run<'a> {
    plan: &'a Correlation,
    packed: &'a Packed,
    bias: Option<&'a [f32]>,
    input: &'a [f32],
    output: &'a mut [f32],
}

with_block_vectors!(Run<'_>);

impl Run<'_> {
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S) {
        let Self {
            plan,
            packed,
            bias,
            input,
            output,
        } = self;
        let in_block = packed.groups * packed.inputs * plan.inputs * BLOCK;
        let out_block = packed.groups * packed.outputs * plan.outputs * BLOCK;
        for (input, output) in input
            .chunks_exact(in_block)
            .zip(output.chunks_exact_mut(out_block))
        {
            let input = pixels::<S, NV>(input).chunks_exact(packed.inputs * plan.inputs);
            let output =
                pixels_mut::<S, NV>(output).chunks_exact_mut(packed.outputs * plan.outputs);
            let mut weights = packed.values.as_slice();
            for (g, (input, output)) in input.zip(output).enumerate() {
                for (first, size) in tiles(packed.outputs, TILE) {
                    let (tile, rest) = weights.split_at(size * packed.inputs * plan.kernel_pixels);
                    weights = rest;
                    let out = &mut output[first * plan.outputs..][..size * plan.outputs];
                    let bias = bias.map(|b| &b[g * packed.outputs + first..][..size]);
                    match size {
                        1 => tile_pixels::<S, 1, NV>(simd, plan, tile, bias, input, out),
                        2 => tile_pixels::<S, 2, NV>(simd, plan, tile, bias, input, out),
                        3 => tile_pixels::<S, 3, NV>(simd, plan, tile, bias, input, out),
                        4 => tile_pixels::<S, 4, NV>(simd, plan, tile, bias, input, out),
                        5 => tile_pixels::<S, 5, NV>(simd, plan, tile, bias, input, out),
                        _ => tile_pixels::<S, 6, NV>(simd, plan, tile, bias, input, out),
                    }
                }
            }
        }
    }
}

/// All pixels of one tile of `OT` output channels.
#[inline(always)]
fn tile_pixels<S: Simd, const OT: usize, const NV: usize>(
    simd: S,
    plan: &Correlation,
    weights: &[f32],
    bias: Option<&[f32]>,
    input: &[[S::f32s; NV]],
    output: &mut [[S::f32s; NV]],
) {
    let weights: &[[f32; OT]] = weights.as_chunks().0;
    let mut start = [0.0; OT];
    if let Some(bias) = bias {
        start.copy_from_slice(bias);
    }
    for group in &plan.groups {
        // With 16 registers a tile of one pixel already fills them.
        if group.wide && S::REGISTER_COUNT >= 32 && NV == 1 {
            sum::<S, OT, WIDE, NV>(simd, plan, group, 0, weights, start, input, output);
        } else {
            let count = if group.wide { WIDE } else { 1 };
            for p in 0..count {
                sum::<S, OT, 1, NV>(simd, plan, group, p, weights, start, input, output);
            }
        }
    }
}

/// `NX` pixels of a group from the `skip`th on, `OT` output channels.
#[inline(always)]
#[allow(clippy::too_many_arguments, clippy::needless_range_loop)]
fn sum<S: Simd, const OT: usize, const NX: usize, const NV: usize>(
    simd: S,
    plan: &Correlation,
    group: &Group,
    skip: usize,
    weights: &[[f32; OT]],
    start: [f32; OT],
    input: &[[S::f32s; NV]],
    output: &mut [[S::f32s; NV]],
) {
    let step = group.input_step as usize;
    let base = group.base as usize + skip * step;
    let taps = plan.lists[group.list as usize].as_slice();
    // The sums stay in registers over all channels and taps. Each weight that is loaded serves NX
    // pixels and each pixel OT channels: OT + NX loads for OT * NX products.
    // Loops, not `array::from_fn`: what is not inlined would be compiled without vectors.
    let mut acc = [[[simd.splat_f32s(0.0); NV]; NX]; OT];
    for o in 0..OT {
        acc[o] = [[simd.splat_f32s(start[o]); NV]; NX];
    }
    let planes = input
        .chunks_exact(plan.inputs)
        .zip(weights.chunks_exact(plan.kernel_pixels));
    for (plane, weights) in planes {
        for tap in taps {
            let weights = &weights[tap.weight as usize];
            // Indices are in range by construction; wrapping keeps overflow checks out of the loop,
            // and indexing still refuses anything outside the plane.
            let at = base.wrapping_add(tap.input as usize);
            let mut x = [[simd.splat_f32s(0.0); NV]; NX];
            for p in 0..NX {
                x[p] = plane[at.wrapping_add(step.wrapping_mul(p))];
            }
            for o in 0..OT {
                let weight = simd.splat_f32s(weights[o]);
                for p in 0..NX {
                    for v in 0..NV {
                        acc[o][p][v] = simd.mul_add_e_f32s(weight, x[p][v], acc[o][p][v]);
                    }
                }
            }
        }
    }
    for o in 0..OT {
        for p in 0..NX {
            let pixel = group.output as usize + (skip + p) * group.output_step as usize;
            output[o * plan.outputs + pixel] = acc[o][p];
        }
    }
}
