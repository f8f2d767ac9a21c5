//! What leaves of a delta where the payload is narrower than f32, and what stays.
//!
//! Invariant: what a payload can say is exact; `sent` is that much, and the rest stays in `w -
//! last`.

use super::Kernel;
use super::lanes::{Arith, Lanes};
use super::take::{Next, Rule};
use crate::weights::BLOCK;
use crate::weights::view::WeightsView;

/// The position includes what was sent; only what fits into a narrower payload leaves, and the rest
/// stays in `w - last`.
#[derive(Clone, Copy)]
pub(super) struct Rounded<'a> {
    pub(super) rounding: Rounding<'a>,
    /// What a delta is multiplied by before it is rounded.
    pub(super) portion: f32,
}
impl Rule for Rounded<'_> {
    const JOURNAL: bool = true;
    const READS_SENT: bool = false;
    const WRITES_SENT: bool = true;
    const LAST_IS_W: bool = false;
    #[inline(always)]
    fn next<A: Arith>(&self, i: usize, pos: A, _: A, d: A) -> Next<A> {
        // Plus zero: what rounds to -0.0 is +0.0.
        let zero = A::splat(0.0);
        let out = self
            .rounding
            .of(i, d.times(A::splat(self.portion)))
            .plus(zero);
        let mut sent = out.times(A::splat(1.0 / self.portion)).plus(zero);
        // A sum is exact. In a mean the least that is left would go back and forth forever:
        // multiplied by the portion it rounds to itself, or to nothing.
        if self.portion != 1.0 {
            let rest = d.minus(sent).zero_below(A::splat(REST_LEAST));
            sent = d.minus(rest).plus(zero);
        }
        Next {
            w: pos.plus(d),
            last: pos.plus(sent),
            sent,
            out,
        }
    }
}

/// What is left of a delta in a mean and is smaller counts as sent: 2^-100.
pub(super) const REST_LEAST: f32 = f32::from_bits((127 - 100) << 23);

/// What a narrow payload can hold of a delta.
#[derive(Clone, Copy, Debug)]
pub enum Rounding<'a> {
    /// The upper half of an f32.
    Bf16,
    /// For each [`STEP_BLOCK`] weights a power of two, from 2^-149 to 2^104: multiples of it, up to
    /// so many times.
    Steps(&'a [f32], f32),
}

/// Weights that share a step in [`Rounding::Steps`].
pub const STEP_BLOCK: usize = 64;

impl Rounding<'_> {
    #[inline(always)]
    fn of<A: Arith>(&self, i: usize, x: A) -> A {
        match self {
            Self::Bf16 => x.upper_half(),
            Self::Steps(steps, most) => {
                let step = steps[i / STEP_BLOCK];
                // From 2^23 to 2^24 steps an f32 is a whole number of steps: adding rounds.
                let round = A::splat(step * 12_582_912.0);
                x.within(A::splat(step * most)).plus(round).minus(round)
            }
        }
    }
}

/// The largest movement in each block of weights that will share a step.
pub(super) struct LargestMoves<'a> {
    w: WeightsView<'a>,
    last: WeightsView<'a>,
    out: &'a mut [f32],
}

impl<'a> LargestMoves<'a> {
    pub(super) fn new(w: WeightsView<'a>, last: WeightsView<'a>, out: &'a mut [f32]) -> Self {
        super::check_blocks(w.len(), 4 * last.len());
        assert_eq!(
            out.len(),
            w.len().div_ceil(STEP_BLOCK),
            "one for each block"
        );
        Self { w, last, out }
    }
}

impl Kernel for LargestMoves<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        self.out.fill(0.0);
        let mut moves = [0; 4 * BLOCK];
        for i in (0..self.w.len()).step_by(BLOCK) {
            // SAFETY: both have `w.len()` weights, a multiple of a block; `moves` has 64 bytes.
            unsafe {
                let last = V::load(self.last.as_ptr().add(i));
                let x = V::load(self.w.as_ptr().add(i));
                let (d, _) = x.minus(last).finite_or_zero();
                d.store_bytes(moves.as_mut_ptr());
            }
            let moves = moves.as_chunks::<4>().0.iter();
            let largest = moves.map(|x| f32::from_le_bytes(*x).abs());
            let out = &mut self.out[i / STEP_BLOCK];
            *out = largest.fold(*out, f32::max);
        }
    }
}
