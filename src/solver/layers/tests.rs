//! Every layer's gradients against central differences, on every instruction set at hand.
//!
//! The objective is `Σ g × y` in f64 with random `g`, the forward pass f32. Sizes are odd on
//! purpose: windows that do not divide the image, padding, strides, groups, part batches.

use std::sync::atomic::AtomicU32;

use proptest::prelude::*;
use pulp::Arch;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::solver::net_spec::{Normalization, PoolMethod, Window};
use dogwild_kernels::{Buffer, archs};

const FILLER: Filler = Filler::Constant { value: 0.0 };

struct Case {
    op: LayerOp,
    bottoms: Vec<Shape>,
    blocks: usize,
    /// Distance of the difference, and the error allowed relative to the largest gradient.
    step: f32,
    tolerance: f64,
}

impl Case {
    fn new(op: LayerOp, bottoms: &[Shape]) -> Self {
        Self {
            op,
            bottoms: bottoms.to_vec(),
            blocks: 1,
            step: 0.1,
            tolerance: 2e-4,
        }
    }
}

/// One layer with its blobs, its parameters as a small shared buffer, and the objective.
struct Bench {
    layer: Box<dyn Layer>,
    in_place: bool,
    blobs: Vec<Blob>,
    top: Vec<f32>,
    goal: Vec<f32>,
    weights: Vec<AtomicU32>,
    lengths: Vec<usize>,
    labels: Vec<u32>,
}

fn random(rng: &mut Xoshiro256PlusPlus, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

impl Bench {
    fn new(case: &Case, arch: Arch, seed: u64) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let (layer, top) =
            build(&case.op, arch, &case.bottoms, case.blocks, 5).expect("a valid case");
        let lengths: Vec<usize> = layer
            .parameters()
            .iter()
            .map(|p| p.shape.iter().product())
            .collect();
        let mut blobs = Vec::new();
        for &shape in &case.bottoms {
            let mut data = Buffer::zeros(block_len(shape) * case.blocks);
            let values = distinct(rng, data.len());
            data.copy_from_slice(&values);
            blobs.push(Blob {
                shape,
                data,
                diff: Buffer::default(),
            });
        }
        let len = top.map_or(0, |t| block_len(t) * case.blocks);
        let count: usize = lengths.iter().sum();
        let labels = (0..case.blocks * BLOCK)
            .map(|i| (i * 7 % case.bottoms[0][0]) as u32)
            .collect();
        Self {
            in_place: layer.in_place(),
            layer,
            blobs,
            top: vec![0.0; len],
            goal: random(rng, len),
            weights: random(rng, count)
                .into_iter()
                .map(|w| AtomicU32::new(w.to_bits()))
                .collect(),
            lengths,
            labels,
        }
    }

    fn objective(&mut self) -> f64 {
        let indices: Vec<usize> = (0..self.blobs.len()).collect();
        let bottoms = Bottoms {
            blobs: &self.blobs,
            indices: &indices,
        };
        if self.in_place {
            self.top.copy_from_slice(bottoms.data(0));
        }
        let pass = pass(&self.labels);
        self.layer.forward(
            pass,
            params(&self.weights, &self.lengths),
            bottoms,
            &mut self.top,
        );
        match self.layer.outcome() {
            Some(o) => o.loss_sum / o.normaliser,
            None => self
                .top
                .iter()
                .zip(&self.goal)
                .map(|(&y, &g)| f64::from(y) * f64::from(g))
                .sum(),
        }
    }

    fn weight(&self) -> WeightsView<'_> {
        WeightsView::of(&self.weights)
    }
}

/// Values at least 1e-3 apart, so that no maximum changes its place within a small step.
fn distinct(rng: &mut Xoshiro256PlusPlus, len: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..len)
        .map(|i| (i as f32 + 0.5) / len as f32 * 2.0 - 1.0)
        .collect();
    for i in (1..len).rev() {
        values.swap(i, rng.random_range(0..=i));
    }
    values
}

fn pass(labels: &[u32]) -> Pass<'_> {
    Pass {
        images: labels.len(),
        labels,
        train: true,
        count: 3,
    }
}

fn params<'a>(weights: &'a [AtomicU32], lengths: &[usize]) -> Params<'a> {
    let w = WeightsView::of(weights);
    Params {
        weight: lengths.first().map(|&n| w.slice(0, n)),
        bias: lengths.get(1).map(|&n| w.slice(lengths[0], n)),
    }
}

/// Gradients of the parameters (0.5 too large) and of the bottoms.
fn gradients(bench: &mut Bench) -> (Vec<f32>, Vec<Vec<f32>>) {
    let indices: Vec<usize> = (0..bench.blobs.len()).collect();
    let bottoms = Bottoms {
        blobs: &bench.blobs,
        indices: &indices,
    };
    // `keep` must add to the 0.5 that is there.
    let mut grads = vec![0.5f32; bench.weights.len()];
    let (weight, bias) = grads.split_at_mut(bench.lengths.first().copied().unwrap_or(0));
    if !weight.is_empty() {
        let bias = (!bias.is_empty()).then_some(bias);
        bench.layer.backward_params(
            bottoms,
            &bench.goal,
            Gradients {
                weight,
                bias,
                keep: true,
            },
        );
    }
    let mut diffs = Vec::new();
    for (i, blob) in bench.blobs.iter().enumerate() {
        let mut diff = if bench.in_place {
            bench.goal.clone()
        } else {
            vec![f32::NAN; blob.data.len()]
        };
        let top = Top {
            data: &bench.top,
            diff: &bench.goal,
            loss_weight: 1.0,
        };
        let p = params(&bench.weights, &bench.lengths);
        bench
            .layer
            .backward_data(pass(&bench.labels), p, bottoms, i, top, &mut diff);
        diffs.push(diff);
    }
    (grads, diffs)
}

/// Compares every gradient (or a random part of many) with differences.
fn check(case: &Case, seed: u64) {
    for arch in archs() {
        let mut bench = Bench::new(case, arch, seed);
        bench.objective();
        let (grads, diffs) = gradients(&mut bench);
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed ^ 1);
        let step = case.step;
        let mut pairs = Vec::new();
        for i in sample(rng, grads.len()) {
            let old = bench.weight().load(i);
            let difference = central(&mut bench, step, |b, delta| {
                b.weight().store(i, old + delta)
            });
            pairs.push((difference, f64::from(grads[i]) - 0.5, format!("weight {i}")));
        }
        for (b, diff) in diffs.iter().enumerate() {
            for i in sample(rng, diff.len()) {
                let old = bench.blobs[b].data[i];
                let set = |bench: &mut Bench, delta| bench.blobs[b].data[i] = old + delta;
                pairs.push((
                    central(&mut bench, step, set),
                    f64::from(diff[i]),
                    format!("bottom {b} value {i}"),
                ));
            }
        }
        let largest = pairs.iter().map(|p| p.0.abs()).fold(1e-3, f64::max);
        for (difference, gradient, what) in pairs {
            assert!(
                (difference - gradient).abs() <= case.tolerance * largest,
                "{arch:?} {:?} of {:?}: {what}: gradient {gradient}, difference {difference} (largest {largest})",
                case.op,
                case.bottoms
            );
        }
    }
}

fn sample(rng: &mut Xoshiro256PlusPlus, len: usize) -> Vec<usize> {
    if len <= 60 {
        (0..len).collect()
    } else {
        (0..60).map(|_| rng.random_range(0..len)).collect()
    }
}

fn central(bench: &mut Bench, step: f32, set: impl Fn(&mut Bench, f32)) -> f64 {
    set(bench, step);
    let above = bench.objective();
    set(bench, -step);
    let below = bench.objective();
    set(bench, 0.0);
    (above - below) / (2.0 * f64::from(step))
}

fn convolution(num_output: usize, window: Window, group: usize, bias: bool) -> LayerOp {
    LayerOp::Convolution {
        num_output,
        window,
        group,
        bias,
        weight_filler: FILLER,
        bias_filler: FILLER,
    }
}

fn window(kernel: [usize; 2], stride: [usize; 2], pad: [usize; 2], dilation: [usize; 2]) -> Window {
    Window {
        kernel,
        stride,
        pad,
        dilation,
    }
}

fn square(kernel: usize, stride: usize, pad: usize) -> Window {
    window([kernel; 2], [stride; 2], [pad; 2], [1; 2])
}

#[test]
fn convolution_table() {
    for (op, bottom) in [
        (convolution(5, square(5, 1, 0), 1, true), [1, 12, 12]),
        (convolution(13, square(5, 1, 0), 1, true), [3, 12, 12]),
        (convolution(7, square(5, 1, 2), 1, true), [2, 8, 8]),
        (convolution(4, square(3, 2, 1), 2, false), [6, 9, 7]),
        (convolution(6, square(11, 4, 0), 1, true), [3, 23, 19]),
        (
            convolution(3, window([1, 3], [1, 2], [0, 1], [1, 1]), 1, true),
            [2, 5, 9],
        ),
        (
            convolution(2, window([3, 2], [2, 1], [2, 3], [2, 3]), 1, true),
            [2, 9, 8],
        ),
        (convolution(6, square(1, 1, 0), 3, true), [3, 4, 4]),
        (convolution(3, square(1, 3, 0), 1, true), [2, 8, 8]),
        (convolution(2, square(3, 1, 3), 1, true), [1, 4, 5]),
        (convolution(2, square(7, 1, 3), 1, true), [1, 3, 3]),
    ] {
        check(&Case::new(op, &[bottom]), 11);
    }
}

#[test]
fn several_blocks() {
    let conv = convolution(7, square(3, 1, 1), 1, true);
    check(
        &Case {
            blocks: 3,
            ..Case::new(conv, &[[2, 6, 6]])
        },
        12,
    );
    let pool = LayerOp::Pooling {
        method: PoolMethod::Average,
        window: square(3, 2, 0),
        global: false,
        floor: false,
    };
    check(
        &Case {
            blocks: 2,
            ..Case::new(pool, &[[2, 6, 6]])
        },
        13,
    );
}

#[test]
fn inner_product() {
    for (num_output, bias, bottom, blocks) in [
        (5, true, [3, 2, 2], 1),
        (1, false, [17, 1, 1], 2),
        (10, true, [7, 1, 3], 3),
    ] {
        let op = LayerOp::InnerProduct {
            num_output,
            bias,
            weight_filler: FILLER,
            bias_filler: FILLER,
        };
        check(
            &Case {
                blocks,
                ..Case::new(op, &[bottom])
            },
            14,
        );
    }
}

#[test]
fn pooling_table() {
    for method in [PoolMethod::Average, PoolMethod::Max] {
        // Image, window: exact, ceil at the end, overlap, padding with a clipped last window, 1
        // pixel.
        for (bottom, w) in [
            ([2, 6, 6], square(2, 2, 0)),
            ([1, 5, 7], square(2, 2, 0)),
            ([2, 8, 8], square(3, 2, 0)),
            ([1, 7, 7], square(3, 2, 1)),
            ([1, 6, 5], square(3, 3, 1)),
            ([1, 4, 5], window([2, 3], [3, 1], [1, 0], [1, 1])),
            ([3, 1, 1], square(1, 1, 0)),
        ] {
            let op = LayerOp::Pooling {
                method,
                window: w,
                global: false,
                floor: false,
            };
            check(
                &Case {
                    step: 1e-4,
                    tolerance: 5e-3,
                    ..Case::new(op, &[bottom])
                },
                15,
            );
        }
        let op = LayerOp::Pooling {
            method,
            window: square(1, 1, 0),
            global: true,
            floor: false,
        };
        check(
            &Case {
                step: 1e-4,
                tolerance: 5e-3,
                ..Case::new(op, &[[2, 3, 4]])
            },
            16,
        );
    }
}

/// Caffe's output sizes: `ceil((size + 2 pad - kernel) / stride) + 1`, less a window that would
/// begin in the trailing padding.
#[test]
fn pooling_rounds_up_as_caffe() {
    let size = |size, kernel, stride, pad, floor| {
        let op = LayerOp::Pooling {
            method: PoolMethod::Max,
            window: square(kernel, stride, pad),
            global: false,
            floor,
        };
        build(&op, Arch::new(), &[[1, size, size]], 1, 0).map(|(_, top)| top.expect("a blob")[1])
    };
    assert_eq!(size(24, 2, 2, 0, false), Ok(12));
    assert_eq!(size(32, 3, 2, 0, false), Ok(16));
    assert_eq!(size(32, 3, 2, 0, true), Ok(15));
    assert_eq!(size(5, 2, 2, 1, false), Ok(3));
    assert_eq!(size(4, 2, 2, 1, false), Ok(3));
    assert_eq!(size(3, 2, 2, 1, false), Ok(2));
    assert_eq!(size(4, 1, 4, 0, false), Ok(1));
    assert!(size(2, 3, 1, 0, false).is_err());
}

#[test]
fn softmax_and_its_loss() {
    let loss = |ignore_label, normalization| LayerOp::SoftmaxWithLoss {
        ignore_label,
        normalization,
    };
    let case = |op, bottom| Case {
        step: 0.05,
        tolerance: 3e-3,
        ..Case::new(op, &[bottom])
    };
    check(
        &Case {
            blocks: 2,
            ..case(loss(None, Normalization::Valid), [7, 1, 1])
        },
        17,
    );
    check(
        &case(loss(Some(2), Normalization::BatchSize), [5, 1, 1]),
        18,
    );
    check(&case(loss(Some(2), Normalization::Valid), [5, 1, 1]), 18);
    check(&case(loss(None, Normalization::None), [3, 1, 1]), 18);
    check(
        &Case {
            step: 0.02,
            ..case(LayerOp::Softmax, [6, 1, 2])
        },
        19,
    );
}

#[test]
fn local_response_normalisation() {
    for (within_channel, local_size, beta) in [(false, 5, 0.75), (false, 3, 0.5), (true, 3, 0.75)] {
        let op = LayerOp::Lrn {
            local_size,
            alpha: 0.9,
            beta,
            k: 1.5,
            within_channel,
        };
        check(
            &Case {
                step: 0.02,
                tolerance: 3e-3,
                ..Case::new(op, &[[7, 4, 5]])
            },
            20,
        );
    }
}

#[test]
fn concat_relu_dropout() {
    check(
        &Case::new(LayerOp::Concat, &[[2, 3, 2], [1, 3, 2], [4, 3, 2]]),
        21,
    );
    let relu = LayerOp::Relu {
        negative_slope: 0.2,
    };
    check(
        &Case {
            step: 1e-4,
            tolerance: 5e-3,
            ..Case::new(relu, &[[3, 4, 1]])
        },
        22,
    );
    check(
        &Case::new(LayerOp::Dropout { ratio: 0.4 }, &[[3, 4, 1]]),
        23,
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn convolution_of_any_shape(
        group in 1usize..3, inputs in 1usize..5, outputs in 1usize..9,
        kernel in prop::array::uniform2(1usize..6), stride in prop::array::uniform2(1usize..4),
        pad in prop::array::uniform2(0usize..4), dilation in prop::array::uniform2(1usize..3),
        image in prop::array::uniform2(1usize..13), bias: bool, seed: u64,
    ) {
        let fits = (0..2).all(|a| dilation[a] * (kernel[a] - 1) < image[a] + 2 * pad[a]);
        prop_assume!(fits);
        let op = convolution(group * outputs, window(kernel, stride, pad, dilation), group, bias);
        check(&Case::new(op, &[[group * inputs, image[0], image[1]]]), seed);
    }

    #[test]
    fn mean_pooling_of_any_shape(
        channels in 1usize..3, kernel in prop::array::uniform2(1usize..5),
        stride in prop::array::uniform2(1usize..5), image in prop::array::uniform2(1usize..12),
        pad in prop::array::uniform2(0usize..4), floor: bool, seed: u64,
    ) {
        prop_assume!((0..2).all(|a| pad[a] < kernel[a] && kernel[a] <= image[a] + 2 * pad[a]));
        let op = LayerOp::Pooling {
            method: PoolMethod::Average,
            window: window(kernel, stride, pad, [1, 1]),
            global: false,
            floor,
        };
        check(&Case::new(op, &[[channels, image[0], image[1]]]), seed);
    }
}
