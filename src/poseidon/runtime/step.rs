//! The rules by which steps are made: Caffe's SGD, the plain mean, Adam.
//!
//! Touches weights through a view. Each rule is a [`Step`]; [`step_of`] makes the one that a plan
//! names. Invariant: a weight's step depends on the gradient, the clock and the state of that
//! weight alone, so parts of tensors give the very steps of the whole.

use pulp::Arch;

use crate::poseidon::{Penalty, Schedule, StepRule};
use crate::solver::{LrPolicy, Sgd, TensorStep};
use crate::weights::{WeightsView, kernels};

/// Weights per chunk: its arrays fit the first-level cache.
const CHUNK: usize = 1024;

/// What a step is made with, apart from the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInput {
    /// Number of steps that were made before this one.
    pub clock: u64,
    /// What makes a mean of the sum of the gradients: 1 / their number.
    pub scale: f32,
    /// Factors on the rate and on the weight decay of this tensor.
    pub multipliers: [f32; 2],
}

/// A rule by which a step is made of a gradient.
pub trait Step: Send + Sync {
    /// Makes one step of the weights `w`, or of any part of a tensor. `gradient` is the sum of
    /// gradients. `state` has [`StepRule::states`] arrays, zero before the first step. All have
    /// the length of `w`.
    ///
    /// # Panics
    /// If the lengths differ, or `state` has fewer arrays.
    fn make(
        &self,
        input: StepInput,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    );
}

/// The rule that `rule` names.
pub fn step_of(rule: &StepRule) -> Box<dyn Step> {
    match rule {
        StepRule::Mean {} => Box::new(MeanStep),
        StepRule::Sgd {
            rate,
            schedule,
            momentum,
            weight_decay,
            penalty,
        } => Box::new(SgdStep {
            rate: Rate::new(*rate, schedule),
            momentum: *momentum,
            decay: *weight_decay,
            l1: *penalty == Penalty::L1,
        }),
        StepRule::Adam {
            rate,
            schedule,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            decoupled,
        } => Box::new(AdamStep {
            arch: Arch::new(),
            rate: Rate::new(*rate, schedule),
            beta: [*beta1, *beta2],
            epsilon: *epsilon,
            decay: *weight_decay,
            decoupled: *decoupled,
        }),
    }
}

/// A rate that falls with the steps.
struct Rate {
    base: f32,
    policy: LrPolicy,
}

impl Rate {
    fn new(base: f32, schedule: &Schedule) -> Self {
        let policy = policy(schedule);
        Self { base, policy }
    }

    fn at(&self, clock: u64) -> f32 {
        self.policy.rate_at(self.base, clock)
    }
}

/// Caffe's policy of a schedule.
fn policy(schedule: &Schedule) -> LrPolicy {
    match schedule.clone() {
        Schedule::Fixed => LrPolicy::Fixed,
        Schedule::Step { gamma, stepsize } => LrPolicy::Step { gamma, stepsize },
        Schedule::Exp { gamma } => LrPolicy::Exp { gamma },
        Schedule::Inv { gamma, power } => LrPolicy::Inv { gamma, power },
        Schedule::Multistep { gamma, stepvalues } => LrPolicy::Multistep { gamma, stepvalues },
        Schedule::Poly { power, max_iter } => LrPolicy::Poly { power, max_iter },
        Schedule::Sigmoid { gamma, stepsize } => LrPolicy::Sigmoid { gamma, stepsize },
    }
}

/// The schedule of Caffe's policy.
pub(super) fn schedule(policy: &LrPolicy) -> Schedule {
    match policy.clone() {
        LrPolicy::Fixed => Schedule::Fixed,
        LrPolicy::Step { gamma, stepsize } => Schedule::Step { gamma, stepsize },
        LrPolicy::Exp { gamma } => Schedule::Exp { gamma },
        LrPolicy::Inv { gamma, power } => Schedule::Inv { gamma, power },
        LrPolicy::Multistep { gamma, stepvalues } => Schedule::Multistep { gamma, stepvalues },
        LrPolicy::Poly { power, max_iter } => Schedule::Poly { power, max_iter },
        LrPolicy::Sigmoid { gamma, stepsize } => Schedule::Sigmoid { gamma, stepsize },
    }
}

/// Caffe's SGD: the very step of `solver::update`.
struct SgdStep {
    rate: Rate,
    momentum: f32,
    decay: f32,
    l1: bool,
}

impl Step for SgdStep {
    fn make(
        &self,
        input: StepInput,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    ) {
        let step = TensorStep::sgd(Sgd {
            rate: self.rate.at(input.clock),
            scale: input.scale,
            multipliers: input.multipliers,
            momentum: self.momentum,
            weight_decay: self.decay,
            l1: self.l1,
        });
        step.apply(w, gradient, state[0]);
    }
}

/// The mean gradient itself.
struct MeanStep;

impl Step for MeanStep {
    fn make(&self, input: StepInput, gradient: &[f32], w: WeightsView<'_>, _: &[WeightsView<'_>]) {
        assert_eq!(w.len(), gradient.len());
        let mut mean = [0.0; CHUNK];
        for (at, part) in chunks(gradient) {
            let mean = &mut mean[..part.len()];
            mean.iter_mut()
                .zip(part)
                .for_each(|(mean, sum)| *mean = sum * input.scale);
            kernels::copy_in(w.slice(at, part.len()), mean);
        }
    }
}

/// Adam: `m = β₁ m + (1-β₁) g`, `v = β₂ v + (1-β₂) g²`, and after `t` steps
/// `w -= rate × (m / (1-β₁ᵗ)) / (√(v / (1-β₂ᵗ)) + ε)`.
struct AdamStep {
    arch: Arch,
    rate: Rate,
    beta: [f32; 2],
    epsilon: f32,
    decay: f32,
    decoupled: bool,
}

impl Step for AdamStep {
    fn make(
        &self,
        input: StepInput,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    ) {
        assert_eq!(w.len(), gradient.len());
        let [rate, decay] = input.multipliers;
        let (rate, decay) = (self.rate.at(input.clock) * rate, self.decay * decay);
        let [added, taken] = match self.decoupled {
            true => [0.0, rate * decay],
            false => [decay, 0.0],
        };
        // In f64 and rounded once: powers of f32 near 1 would be off after many steps.
        let t = (input.clock + 1) as f64;
        let [one, two] = self.beta.map(|beta| 1.0 - f64::from(beta).powf(t));
        let (step, root) = ((f64::from(rate) / one) as f32, (1.0 / two.sqrt()) as f32);
        let mut rows = [[0.0; CHUNK]; 3];
        for (at, part) in chunks(gradient) {
            let [weights, m, v] = rows.each_mut().map(|row| &mut row[..part.len()]);
            let views = [w, state[0], state[1]].map(|view| view.slice(at, part.len()));
            kernels::copy_out(views[0], weights);
            kernels::copy_out(views[1], m);
            kernels::copy_out(views[2], v);
            self.arch.dispatch(
                #[inline(always)]
                || {
                    let numbers = weights.iter_mut().zip(m.iter_mut()).zip(v.iter_mut());
                    for (((w, m), v), g) in numbers.zip(part) {
                        let g = g * input.scale + added * *w;
                        *m = self.beta[0] * *m + (1.0 - self.beta[0]) * g;
                        *v = self.beta[1] * *v + (1.0 - self.beta[1]) * g * g;
                        *w -= taken * *w + step * *m / (v.sqrt() * root + self.epsilon);
                    }
                },
            );
            kernels::copy_in(views[0], weights);
            kernels::copy_in(views[1], m);
            kernels::copy_in(views[2], v);
        }
    }
}

/// Parts of a gradient, each with its place.
fn chunks(gradient: &[f32]) -> impl Iterator<Item = (usize, &[f32])> {
    let parts = gradient.chunks(CHUNK).enumerate();
    parts.map(|(number, part)| (number * CHUNK, part))
}

#[cfg(test)]
mod tests;
