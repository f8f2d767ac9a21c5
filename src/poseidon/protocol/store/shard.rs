//! One KV pair of a server, with all that a checkpoint must hold of it.

use std::sync::atomic::AtomicU32;

use super::super::plan::Pair;
use super::super::step::state_name;
use super::Saved;
use crate::weights::{WeightsView, kernels};

/// A pair that this server holds, with its state.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) pair: Pair,
    pub(super) weights: Vec<AtomicU32>,
    /// What the rule of the steps remembers, an array for each number per weight.
    pub(super) state: Vec<Vec<AtomicU32>>,
    /// Difference of the sums and their bits that were sent back; empty but under `onebit`.
    pub(super) residual: Vec<f32>,
}

impl Shard {
    /// What a checkpoint must hold of it.
    pub(super) fn arrays(&self) -> Vec<Saved> {
        let copy = |words: &[AtomicU32]| {
            let mut values = vec![0.0; words.len()];
            kernels::copy_out(WeightsView::of(words), &mut values);
            values
        };
        let name = |what| format!("pair{}.{what}", self.pair.id);
        let weights = std::iter::once((name("weights"), copy(&self.weights)));
        let state = self.state.iter().enumerate();
        let state = state.map(|(which, words)| (name(state_name(which)), copy(words)));
        let residual = (name("residual"), self.residual.clone());
        weights.chain(state).chain([residual]).collect()
    }
}
