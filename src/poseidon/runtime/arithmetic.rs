//! The arithmetic of a plan for the state machines of Poseidon: its step rule, and the solver's
//! products.

use super::step::{Step, StepInput, step_of};
use crate::poseidon::{Arithmetic, Pair, Plan, StepSpec};
use crate::solver::add_outer_products;
use crate::weights::WeightsView;

/// Makes the steps of a plan. With SGD they are those of `solver::update`, bit for bit.
pub(super) struct PlanArithmetic {
    spec: StepSpec,
    step: Box<dyn Step>,
}

impl PlanArithmetic {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            step: step_of(&plan.step.rule),
            spec: plan.step.clone(),
        }
    }
}

impl Arithmetic for PlanArithmetic {
    fn step(
        &self,
        pair: &Pair,
        clock: u64,
        contributions: usize,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    ) {
        let input = StepInput {
            clock,
            scale: 1.0 / (contributions as u64 * self.spec.batches) as f32,
            multipliers: self.spec.multipliers(pair.layer, pair.tensor),
        };
        self.step.make(input, gradient, w, state);
    }

    fn add_outer_products(&self, sizes: [usize; 2], u: &[f32], v: &[f32], gradient: &mut [f32]) {
        add_outer_products(sizes, u, v, gradient);
    }
}
