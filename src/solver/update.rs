//! The update of Caffe's SGD: `v = rate × (gradient + decay) + momentum × v`, `w -= v`.
//!
//! `w` is read and changed racily: what others add between the read and the write of one
//! weight is lost, as in Hogwild.

use super::net::{Net, Tensor};
use super::spec::{Regularization, SolverSpec};
use crate::weights::WeightsView;

/// Adds one step to the shared weights.
///
/// `grads` (the sum over `iter_size` batches, see [`Net::add_gradients`]) and `history` (this
/// solver's own momentum, zero at the start) have the layout of `w`. `rate` is usually
/// [`SolverSpec::rate_at`] of the cluster's iteration. `grads` is left scaled and clipped.
///
/// # Panics
/// If a length is below [`Net::extent`].
pub fn update(
    spec: &SolverSpec,
    net: &Net,
    w: WeightsView<'_>,
    grads: &mut [f32],
    history: WeightsView<'_>,
    rate: f32,
) {
    let scale = gradient_scale(spec, net.parameters(), grads);
    for tensor in net.parameters() {
        let step = Step {
            scale,
            rate: rate * tensor.param.lr_mult,
            decay: spec.weight_decay * tensor.param.decay_mult,
            momentum: spec.momentum,
            l1: spec.regularization_type == Regularization::L1,
        };
        let (at, len) = (tensor.offset, tensor.len);
        step.apply(
            w.slice(at, len),
            &grads[at..at + len],
            history.slice(at, len),
        );
    }
}

/// 1 / `iter_size`, times what clipping takes off.
fn gradient_scale(spec: &SolverSpec, tensors: &[Tensor], grads: &[f32]) -> f32 {
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

struct Step {
    scale: f32,
    rate: f32,
    decay: f32,
    momentum: f32,
    l1: bool,
}

impl Step {
    fn apply(&self, w: WeightsView<'_>, grads: &[f32], history: WeightsView<'_>) {
        for (i, g) in grads.iter().enumerate() {
            let weight = w.load(i);
            let penalty = if self.l1 { sign(weight) } else { weight };
            let v = self.rate * (self.scale * g + self.decay * penalty)
                + self.momentum * history.load(i);
            history.store(i, v);
            w.store(i, weight - v);
        }
    }
}

/// -1, 0 or 1.
fn sign(x: f32) -> f32 {
    f32::from(i8::from(x > 0.0) - i8::from(x < 0.0))
}
