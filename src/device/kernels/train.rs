//! Kernels of a net on a device (`net.cu`): rectifier, loss and the step of SGD.
//!
//! Invariant: as in `net.rs`. The step's arithmetic is that of `solver::update`, in the same order.

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{DeviceError, Kernel, Number, Part, Shape, Stream};
use crate::weights::WeightsView;

fn count(n: usize) -> Number {
    Number::U(u32::try_from(n).expect("sizes of kernels fit 32 bits"))
}

fn set(view: WeightsView<'_>, i: usize, value: f32) {
    view.word(i).store(value.to_bits(), Relaxed);
}

fn same(lens: &[usize], parts: usize, n: usize) -> Shape {
    assert!(
        lens.len() == parts && lens.iter().all(|&len| len == n),
        "{parts} parts of {n}, not {lens:?}"
    );
    Shape::of(n)
}

/// See [`relu`].
pub static RELU: Kernel = Kernel {
    name: "relu",
    source: "net.cu",
    plan: |lens, numbers| {
        let _slope = numbers[1].f();
        same(lens, 2, numbers[0].u())
    },
    host: |parts, numbers| {
        let slope = numbers[1].f();
        for i in 0..numbers[0].u() {
            let x = parts[0].load(i);
            set(parts[1], i, if x > 0.0 { x } else { x * slope });
        }
    },
};

/// `y = max(x, 0) + slope × min(x, 0)`; `y` may be `x`.
///
/// # Errors
/// The device has failed.
pub fn relu<S: Stream>(
    stream: &S,
    x: Part<'_, S::Memory>,
    y: Part<'_, S::Memory>,
    slope: f32,
) -> Result<(), DeviceError> {
    let n = count(x.len());
    stream.launch(&RELU, &[x, y], &[n, Number::F(slope)])
}

/// See [`relu_back`].
pub static RELU_BACK: Kernel = Kernel {
    name: "relu_back",
    source: "net.cu",
    plan: |lens, numbers| {
        let _slope = numbers[1].f();
        same(lens, 3, numbers[0].u())
    },
    host: |parts, numbers| {
        let slope = numbers[1].f();
        for i in 0..numbers[0].u() {
            let d = parts[1].load(i);
            set(
                parts[2],
                i,
                if parts[0].load(i) > 0.0 { d } else { d * slope },
            );
        }
    },
};

/// The way back of [`relu`], from `x` or, if the slope is 0 or more, from `y`; `dx` may be `dy`.
///
/// # Errors
/// The device has failed.
pub fn relu_back<S: Stream>(
    stream: &S,
    x: Part<'_, S::Memory>,
    dy: Part<'_, S::Memory>,
    dx: Part<'_, S::Memory>,
    slope: f32,
) -> Result<(), DeviceError> {
    let n = count(x.len());
    stream.launch(&RELU_BACK, &[x, dy, dx], &[n, Number::F(slope)])
}

/// See [`softmax_loss`].
pub static SOFTMAX_LOSS: Kernel = Kernel {
    name: "softmax_loss",
    source: "net.cu",
    plan: |lens, numbers| {
        let ([classes, n], _scale) = ([0, 1].map(|i| numbers[i].u()), numbers[2].f());
        assert!(classes > 0, "softmax_loss of no classes");
        assert_eq!(
            lens,
            [classes * n, n, classes * n, n],
            "parts of softmax_loss"
        );
        Shape::of(n)
    },
    host: |parts, numbers| {
        let ([classes, n], scale) = ([0, 1].map(|i| numbers[i].u()), numbers[2].f());
        let &[scores, labels, diff, loss] = parts else {
            unreachable!("as planned")
        };
        for i in 0..n {
            let label = labels.word(i).load(Relaxed) as usize;
            let all = (0..classes).map(|k| scores.load(k * n + i));
            let most = all.clone().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = all.clone().map(|score| (score - most).exp()).sum();
            for (k, score) in all.enumerate() {
                let share = (score - most).exp() / sum;
                if k == label {
                    let least = f32::MIN_POSITIVE;
                    set(loss, i, -(if share < least { least } else { share }).ln());
                }
                set(
                    diff,
                    k * n + i,
                    (share - f32::from(u8::from(k == label))) * scale,
                );
            }
        }
    },
};

/// Softmax over classes and minus the logarithm of the label's share: `loss` for each image, and
/// the gradient of `scale` times their sum. `labels` are whole numbers, as words.
///
/// # Errors
/// The device has failed.
pub fn softmax_loss<S: Stream>(
    stream: &S,
    scores: Part<'_, S::Memory>,
    labels: Part<'_, S::Memory>,
    diff: Part<'_, S::Memory>,
    loss: Part<'_, S::Memory>,
    scale: f32,
) -> Result<(), DeviceError> {
    let n = labels.len();
    let numbers = [count(scores.len() / n.max(1)), count(n), Number::F(scale)];
    stream.launch(&SOFTMAX_LOSS, &[scores, labels, diff, loss], &numbers)
}

/// See [`sgd_step`].
pub static SGD_STEP: Kernel = Kernel {
    name: "sgd_step",
    source: "net.cu",
    plan: |lens, numbers| {
        let _l1 = numbers[1].u();
        let _factors = [2, 3, 4, 5].map(|i| numbers[i].f());
        same(lens, 3, numbers[0].u())
    },
    host: |parts, numbers| {
        let l1 = numbers[1].u() != 0;
        let [rate, decay, momentum, stride] = [2, 3, 4, 5].map(|i| numbers[i].f());
        let &[w, gradient, history] = parts else {
            unreachable!("as planned")
        };
        for i in 0..numbers[0].u() {
            let x = w.load(i);
            let sign = f32::from(i8::from(x > 0.0) - i8::from(x < 0.0));
            let mut step = rate * gradient.load(i);
            if decay != 0.0 {
                step += decay * if l1 { sign } else { x };
            }
            if momentum != 0.0 {
                step += momentum * history.load(i);
            }
            history.store(i, step);
            set(w, i, x - stride * step);
        }
    },
};

/// Factors of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFactors {
    /// On the gradient.
    pub rate: f32,
    /// On the weight (or, with `l1`, its sign).
    pub decay: f32,
    /// On the history.
    pub momentum: f32,
    /// Decay by the sign.
    pub l1: bool,
    /// How often the step is taken off the weights: 1, or 0 to leave it in the history.
    pub stride: f32,
}

/// `history = rate × gradient + decay × w + momentum × history; w -= stride × history`.
///
/// # Errors
/// The device has failed.
pub fn sgd_step<S: Stream>(
    stream: &S,
    w: Part<'_, S::Memory>,
    gradient: Part<'_, S::Memory>,
    history: Part<'_, S::Memory>,
    factors: StepFactors,
) -> Result<(), DeviceError> {
    let StepFactors {
        rate,
        decay,
        momentum,
        l1,
        stride,
    } = factors;
    let [rate, decay, momentum, stride] = [rate, decay, momentum, stride].map(Number::F);
    let l1 = Number::U(l1.into());
    let numbers = [count(w.len()), l1, rate, decay, momentum, stride];
    stream.launch(&SGD_STEP, &[w, gradient, history], &numbers)
}

/// See [`walk`].
pub static WALK: Kernel = Kernel {
    name: "walk",
    source: "net.cu",
    plan: |lens, numbers| {
        let _factor = numbers[1].f();
        same(lens, 2, numbers[0].u())
    },
    host: |parts, numbers| {
        let factor = numbers[1].f();
        for i in 0..numbers[0].u() {
            set(parts[0], i, parts[0].load(i) - factor * parts[1].load(i));
        }
    },
};

/// `w -= factor × step`.
///
/// # Errors
/// The device has failed.
pub fn walk<S: Stream>(
    stream: &S,
    w: Part<'_, S::Memory>,
    step: Part<'_, S::Memory>,
    factor: f32,
) -> Result<(), DeviceError> {
    let n = count(w.len());
    stream.launch(&WALK, &[w, step], &[n, Number::F(factor)])
}

/// See [`squares`].
pub static SQUARES: Kernel = Kernel {
    name: "squares",
    source: "net.cu",
    plan: |lens, numbers| {
        let [values, sums, _keep] = [0, 1, 2].map(|i| numbers[i].u());
        assert!(lens == [values, sums], "{lens:?}, not {values} and {sums}");
        Shape::of(sums)
    },
    host: |parts, numbers| {
        let [values, sums, keep] = [0, 1, 2].map(|i| numbers[i].u());
        for sum in 0..sums {
            let before = if keep != 0 { parts[1].load(sum) } else { 0.0 };
            let square = |i: usize| parts[0].load(i) * parts[0].load(i);
            let more: f32 = (sum..values).step_by(sums.max(1)).map(square).sum();
            set(parts[1], sum, before + more);
        }
    },
};

/// `sums[k]` becomes the sum of the squares of every so many values of `x`, from the k-th on, or
/// has it added if `keep`: all of `sums` together are the sum of all squares.
///
/// # Errors
/// The device has failed.
pub fn squares<S: Stream>(
    stream: &S,
    x: Part<'_, S::Memory>,
    sums: Part<'_, S::Memory>,
    keep: bool,
) -> Result<(), DeviceError> {
    let numbers = [count(x.len()), count(sums.len()), Number::U(keep.into())];
    stream.launch(&SQUARES, &[x, sums], &numbers)
}
