//! The update of Caffe's SGD: `v = rate × (gradient + decay) + momentum × v`, `w -= v`.
//!
//! The shared weights are read once (for the decay) and changed by one racy pass,
//! [`kernels::racy_axpy`]: what others add between the read and the write of one vector of
//! weights is lost, as in Hogwild. A chunk at a time, so that what lies between stays in the
//! first-level cache.

use pulp::Arch;

use super::net::{Net, Tensor};
use super::spec::{Regularization, SolverSpec};
use crate::weights::{WeightsView, kernels};

/// Weights per chunk: four arrays of it fit the first-level cache.
pub(super) const CHUNK: usize = 1024;

/// Sums of squares over all weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Squares {
    /// Of the weights.
    pub(super) weights: f64,
    /// Of the step.
    pub(super) step: f64,
}

/// Adds one step to the shared weights.
///
/// `grads` (the sum over `iter_size` batches, see [`Net::add_gradients`]) and `history` (this
/// solver's own momentum, zero at the start) have the layout of `w`. `rate` is usually
/// [`SolverSpec::rate_at`] of the cluster's iteration.
///
/// # Panics
/// If a length is below [`Net::extent`].
pub fn update(
    spec: &SolverSpec,
    net: &Net,
    w: WeightsView<'_>,
    grads: &[f32],
    history: WeightsView<'_>,
    rate: f32,
) {
    let scale = gradient_scale(spec, net.parameters(), grads);
    for tensor in net.parameters() {
        let (at, len) = (tensor.offset, tensor.len);
        TensorStep::new(spec, net.arch, tensor, rate, scale).apply(
            w.slice(at, len),
            &grads[at..at + len],
            history.slice(at, len),
        );
    }
}

/// [`update`] of one tensor, or of any part of it, with a gradient that the caller has summed.
/// Element by element it is the same arithmetic, so that a parameter server that holds parts of
/// tensors makes the very step that a solver would.
pub struct TensorStep(Step);

/// The numbers of a [`TensorStep`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The rate of this step.
    pub rate: f32,
    /// Factor on the gradient: 1 / the number of batches it is the sum of.
    pub scale: f32,
    /// Factors on the rate and on the weight decay of this tensor.
    pub multipliers: [f32; 2],
    /// Share of the last step that is added to this one.
    pub momentum: f32,
    /// Factor of the penalty on the weights.
    pub weight_decay: f32,
    /// The penalty is on the size of a weight instead of on its square.
    pub l1: bool,
}

impl TensorStep {
    /// A step from its numbers alone.
    pub fn sgd(numbers: Sgd) -> Self {
        Self::of_numbers(Arch::new(), numbers)
    }

    fn of_numbers(arch: Arch, numbers: Sgd) -> Self {
        let Sgd {
            rate,
            scale,
            multipliers: [lr_mult, decay_mult],
            momentum,
            weight_decay,
            l1,
        } = numbers;
        Self(Step {
            arch,
            gradient: rate * lr_mult * scale,
            decay: rate * lr_mult * weight_decay * decay_mult,
            momentum,
            l1,
        })
    }

    /// A step of `tensor` at `rate`; its gradient is multiplied by `scale` (1 / the number of
    /// batches it is the sum of). Clipping, which needs the gradients of all tensors, is the
    /// caller's to refuse.
    pub fn of(spec: &SolverSpec, tensor: &Tensor, rate: f32, scale: f32) -> Self {
        Self::new(spec, Arch::new(), tensor, rate, scale)
    }

    pub(super) fn new(
        spec: &SolverSpec,
        arch: Arch,
        tensor: &Tensor,
        rate: f32,
        scale: f32,
    ) -> Self {
        let numbers = Sgd {
            rate,
            scale,
            multipliers: [tensor.param.lr_mult, tensor.param.decay_mult],
            momentum: spec.momentum,
            weight_decay: spec.weight_decay,
            l1: spec.regularization_type == Regularization::L1,
        };
        Self::of_numbers(arch, numbers)
    }

    /// Makes the step.
    ///
    /// # Panics
    /// If the three differ in length.
    pub fn apply(&self, w: WeightsView<'_>, gradient: &[f32], history: WeightsView<'_>) {
        assert_eq!((w.len(), history.len()), (gradient.len(), gradient.len()));
        for at in (0..gradient.len()).step_by(CHUNK) {
            let len = CHUNK.min(gradient.len() - at);
            self.0.apply(
                w.slice(at, len),
                &gradient[at..at + len],
                history.slice(at, len),
            );
        }
    }
}

impl TensorStep {
    /// Leaves the step in `history` instead of making it, and adds up the squares of weights and
    /// step.
    pub(super) fn prepare(
        &self,
        w: WeightsView<'_>,
        gradient: &[f32],
        history: WeightsView<'_>,
        squares: &mut Squares,
    ) {
        let (mut step, mut other) = ([0.0; CHUNK], [0.0; CHUNK]);
        for at in (0..gradient.len()).step_by(CHUNK) {
            let len = CHUNK.min(gradient.len() - at);
            let (step, other) = (&mut step[..len], &mut other[..len]);
            let (w, history) = (w.slice(at, len), history.slice(at, len));
            self.0
                .velocity(w, &gradient[at..at + len], history, step, other);
            kernels::copy_in(history, step);
            kernels::copy_out(w, other);
            squares.weights += square(self.0.arch, other);
            squares.step += square(self.0.arch, step);
        }
    }
}

/// 1 / `iter_size`, times what clipping takes off.
pub(super) fn gradient_scale(spec: &SolverSpec, tensors: &[Tensor], grads: &[f32]) -> f32 {
    let mean = 1.0 / spec.iter_size as f32;
    let Some(limit) = spec.clip_gradients else {
        return mean;
    };
    // Caffe measures the length before it divides by iter_size.
    let squares: f64 = tensors
        .iter()
        .flat_map(|t| &grads[t.offset..t.offset + t.len])
        .map(|&g| f64::from(g) * f64::from(g))
        .sum();
    let length = squares.sqrt() as f32;
    if length > limit {
        mean * limit / length
    } else {
        mean
    }
}

/// The factors of one tensor's step.
struct Step {
    arch: Arch,
    gradient: f32,
    decay: f32,
    momentum: f32,
    l1: bool,
}

impl Step {
    /// One chunk.
    fn apply(&self, w: WeightsView<'_>, gradients: &[f32], history: WeightsView<'_>) {
        let (mut step, mut other) = ([0.0; CHUNK], [0.0; CHUNK]);
        let (step, other) = (&mut step[..gradients.len()], &mut other[..gradients.len()]);
        self.velocity(w, gradients, history, step, other);
        if self.momentum != 0.0 {
            kernels::copy_in(history, step);
        }
        kernels::racy_axpy(w, -1.0, step);
    }

    /// The step of one chunk: what momentum is left of the last and what the gradient adds. All of
    /// one length; `other` is scratch.
    fn velocity(
        &self,
        w: WeightsView<'_>,
        gradients: &[f32],
        history: WeightsView<'_>,
        step: &mut [f32],
        other: &mut [f32],
    ) {
        if self.decay != 0.0 {
            kernels::copy_out(w, other);
            if self.l1 {
                other.iter_mut().for_each(|w| *w = sign(*w));
            }
        }
        self.arch.dispatch(
            #[inline(always)]
            || {
                for ((s, g), w) in step.iter_mut().zip(gradients).zip(other.iter()) {
                    *s = self.gradient * g + self.decay * w;
                }
            },
        );
        if self.momentum != 0.0 {
            kernels::copy_out(history, other);
            self.arch.dispatch(
                #[inline(always)]
                || {
                    for (s, v) in step.iter_mut().zip(other.iter()) {
                        *s += self.momentum * v;
                    }
                },
            );
        }
    }
}

/// The sum of squares of one chunk.
pub(super) fn square(arch: Arch, values: &[f32]) -> f64 {
    let mut sum = 0.0f32;
    arch.dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; 16];
            let blocks = values.chunks_exact(16);
            let rest: f32 = blocks.remainder().iter().map(|x| x * x).sum();
            for block in blocks {
                for (lane, x) in lanes.iter_mut().zip(block) {
                    *lane += x * x;
                }
            }
            sum = lanes.iter().sum::<f32>() + rest;
        },
    );
    f64::from(sum)
}

/// -1, 0 or 1.
fn sign(x: f32) -> f32 {
    f32::from(i8::from(x > 0.0) - i8::from(x < 0.0))
}
