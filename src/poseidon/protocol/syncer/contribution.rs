//! What a worker gives of a layer.

use std::ops::Range;

use super::super::message::{Floats, Pool};
use super::super::plan::Pair;

/// The gradient of a layer, or the factors that it can be computed from.
#[derive(Debug)]
pub enum Contribution<'a> {
    /// Gradients in the layout of the weights, from weight `from` on, this layer's among them.
    /// They are copied.
    Gradient {
        /// Place of the first in the buffer.
        from: usize,
        /// Gradient of each weight.
        values: &'a [f32],
    },
    /// Gradients of this layer alone, in the layout of the weights. They travel from where they
    /// lie: nothing is copied.
    Own(Floats),
    /// The layer's factors, u then v: `[outputs][images]`, `[inputs][images]`.
    Factors(Vec<f32>),
}

impl Contribution<'_> {
    /// The gradient of `pair`, whose layer begins at weight `first`; none of factors.
    pub(super) fn values(&self, pair: &Pair, first: usize) -> &[f32] {
        match self {
            Self::Gradient { from, values } => &values[of(pair, *from)],
            Self::Own(floats) => &floats[of(pair, first)],
            Self::Factors(_) => &[],
        }
    }

    /// The same as a payload, in memory of `pool` if it must be copied.
    pub(super) fn floats(&self, pair: &Pair, first: usize, pool: &Pool) -> Floats {
        match self {
            Self::Own(floats) => floats.part(of(pair, first)),
            _ => pool.copy(self.values(pair, first)),
        }
    }
}

/// The place of a pair's weights in memory that begins at weight `from`.
fn of(pair: &Pair, from: usize) -> Range<usize> {
    pair.offset - from..pair.offset - from + pair.len
}
