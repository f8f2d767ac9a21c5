//! What the protocol needs of a solver, and the sums that it makes itself.
//!
//! Store and syncer know no solver: an [`Arithmetic`] is an argument. Every sum here
//! is made in the order of the workers, so that all replicas of a weight stay equal bit for bit.

use super::message::Message;
use super::plan::{Pair, PlanLayer};
use crate::weights::WeightsView;

/// A solver's arithmetic.
pub trait Arithmetic: Send + Sync {
    /// Makes step `clock` on the weights of `pair` with a gradient that is the sum of those of
    /// `contributions` workers. `w` is as long as the pair, and so is each of `state`, what the
    /// plan's rule remembers between two steps ([`StepRule::states`](super::StepRule::states)).
    fn step(
        &self,
        pair: &Pair,
        clock: u64,
        contributions: usize,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    );

    /// `gradient += u × vᵀ` for a fully connected layer of `[outputs, inputs]`; `u` and `v` are
    /// `[outputs][images]` and `[inputs][images]`.
    fn add_outer_products(&self, sizes: [usize; 2], u: &[f32], v: &[f32], gradient: &mut [f32]);
}

/// The gradient of a fully connected layer, weight then bias, from the factors of several workers.
/// `gradient` has room for all of it.
pub(super) fn rebuild<'m>(
    layer: &PlanLayer,
    factors: impl Iterator<Item = &'m Message>,
    math: &dyn Arithmetic,
    gradient: &mut [f32],
) {
    let sizes = [layer.shape.outputs as usize, layer.shape.inputs as usize];
    gradient.fill(0.0);
    let (weight, bias) = gradient.split_at_mut(sizes[0] * sizes[1]);
    for message in factors {
        let floats = message.floats();
        // The header was refused unless the payload is a whole number of images.
        let images = floats.len() / (sizes[0] + sizes[1]);
        let (u, v) = floats.split_at(sizes[0] * images);
        math.add_outer_products(sizes, u, v, weight);
        if images > 0 {
            for (bias, row) in bias.iter_mut().zip(u.chunks_exact(images)) {
                *bias += row.iter().sum::<f32>();
            }
        }
    }
}

/// Adds floats to floats.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
