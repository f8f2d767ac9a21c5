//! The addition itself.

use std::ops::Range;

use super::Sum;
use crate::device::HostMemory;
use crate::weights::{WeightsView, kernels};

/// Floats that are added at a time: several arrays of it fit the first-level cache.
const CHUNK: usize = 2048;

/// A range of some memory.
pub(super) fn view<'m>(memory: &'m HostMemory, range: &Range<usize>) -> WeightsView<'m> {
    memory.view().slice(range.start, range.len())
}

impl<N> Sum<N> {
    /// Adds `gradients`, one after the other, to the total, or to zero.
    pub(super) fn add(&self, range: &Range<usize>, gradients: &[HostMemory], to_zero: bool) {
        let (mut sum, mut other) = ([0.0; CHUNK], [0.0; CHUNK]);
        // A chunk at a time, so that the total goes to memory once however many are added.
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..range.end.min(start + CHUNK);
            let (sum, other) = (&mut sum[..chunk.len()], &mut other[..chunk.len()]);
            let total = view(&self.total, &chunk);
            match to_zero {
                true => sum.fill(0.0),
                false => kernels::copy_out(total, sum),
            }
            for gradient in gradients {
                kernels::copy_out(view(gradient, &chunk), other);
                self.arch.dispatch(
                    #[inline(always)]
                    || {
                        for (sum, other) in sum.iter_mut().zip(&*other) {
                            *sum += other;
                        }
                    },
                );
            }
            kernels::copy_in(total, sum);
        }
    }
}
