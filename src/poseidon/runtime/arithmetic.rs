//! The solver's arithmetic for the state machines of Poseidon.

use super::model::Model;
use crate::poseidon::{Arithmetic, Pair};
use crate::solver::{SolverSpec, Tensor, TensorStep, add_outer_products};
use crate::weights::WeightsView;

/// Makes the same steps as `solver::update`, bit for bit.
pub(super) struct SolverArithmetic {
    spec: SolverSpec,
    /// Tensors of each layer: weight, then bias.
    tensors: Vec<Vec<Tensor>>,
    /// Batches whose gradients one worker adds up for a step.
    batches: u64,
}

impl SolverArithmetic {
    /// The arithmetic for workers of `threads` threads each, which add up their gradients.
    pub(super) fn new(spec: &SolverSpec, model: &Model, threads: usize) -> Self {
        let layers = model.layers.iter();
        let tensors = layers.map(|layer| model.tensors[layer.tensors.clone()].to_vec());
        Self {
            spec: spec.clone(),
            tensors: tensors.collect(),
            batches: spec.iter_size * threads as u64,
        }
    }
}

impl Arithmetic for SolverArithmetic {
    fn step(
        &self,
        pair: &Pair,
        clock: u64,
        contributions: usize,
        gradient: &[f32],
        w: WeightsView<'_>,
        history: WeightsView<'_>,
    ) {
        let scale = 1.0 / (contributions as u64 * self.batches) as f32;
        let tensor = &self.tensors[pair.layer][pair.tensor];
        TensorStep::of(&self.spec, tensor, self.spec.rate_at(clock), scale)
            .apply(w, gradient, history);
    }

    fn add_outer_products(&self, sizes: [usize; 2], u: &[f32], v: &[f32], gradient: &mut [f32]) {
        add_outer_products(sizes, u, v, gradient);
    }
}
