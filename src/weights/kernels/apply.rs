//! What a master does with a delta: one pass over a chunk.
//!
//! Invariant: a weight is changed only to a finite sum. The others stay as they are and are
//! counted.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::Kernel;
#[cfg(target_arch = "x86_64")]
use super::fours;
use super::lanes::{Lanes, Memory};
use super::take::{float, note_block, note_one};
use super::views::Delta;
use crate::weights::BLOCK;
#[cfg(target_arch = "x86_64")]
use crate::weights::journal::FOUR;
use crate::weights::journal::{Journal, mark};
use crate::weights::view::WeightsView;

/// A delta added to a chunk from weight `first` on.
#[derive(Clone, Copy)]
pub(super) struct Apply<'a, D> {
    w: WeightsView<'a>,
    delta: D,
    first: usize,
    journal: &'a Journal,
}

impl<'a, D: Delta> Apply<'a, D> {
    pub(super) fn new(w: WeightsView<'a>, delta: D, first: u32, journal: &'a Journal) -> Self {
        super::check_blocks(w.len(), delta.bytes());
        Self {
            w,
            delta,
            first: (first as usize).min(w.len()),
            journal,
        }
    }

    /// In exchanges, until `end`: of four weights each where that can be. Returns how many weights
    /// were left as they are.
    pub(super) fn run_atomic<M: Memory>(self, end: usize) -> u32 {
        #[cfg(target_arch = "x86_64")]
        let refused = if fours::can(self.w.as_ptr()) {
            let begin = self.first.next_multiple_of(FOUR).min(end);
            let fours = begin..begin.max(end / FOUR * FOUR);
            self.run_ones::<M>(self.first..begin)
                // SAFETY: just asked.
                + unsafe { self.run_fours::<M>(fours.clone()) }
                + self.run_ones::<M>(fours.end..end)
        } else {
            self.run_ones::<M>(self.first..end)
        };
        #[cfg(not(target_arch = "x86_64"))]
        let refused = self.run_ones::<M>(self.first..end);
        // No weight is in flight: blocks that follow may write over its entry.
        M::store_mark(&self.journal.mark, mark(end.max(self.first), 0));
        refused
    }

    /// Weight by weight.
    fn run_ones<M: Memory>(self, weights: Range<usize>) -> u32 {
        let mut refused = 0;
        for i in weights {
            let delta = self.delta.one(i);
            let word = self.w.word(i);
            loop {
                let bits = word.load(Relaxed);
                let sum = f32::from_bits(bits) + delta;
                let next = if sum.is_finite() { sum.to_bits() } else { bits };
                note_one::<M>(self.journal, i, [bits, next, 0]);
                if M::exchange(word, bits, next) {
                    // At once: a solver may move this weight on.
                    M::store_mark(&self.journal.mark, mark(i + 1, 0));
                    refused += u32::from(!sum.is_finite());
                    break;
                }
            }
        }
        refused
    }

    /// Weights of the chunk.
    pub(super) fn len(&self) -> usize {
        self.w.len()
    }

    pub(super) fn journal(&self) -> &'a Journal {
        self.journal
    }

    /// The words from weight `i` on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn words(&self, i: usize) -> *mut u32 {
        self.w.word(i).as_ptr()
    }

    /// What is added to the weights from `i` on, aligned or not.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn delta(&self, i: usize) -> *const f32 {
        assert!(i < self.w.len());
        // SAFETY: the delta is as long as the weights; see `new`.
        unsafe { self.delta.begin().add(i) }
    }

    /// Whether there are single weights to do before the whole blocks.
    pub(super) fn begins_within_a_block(self) -> bool {
        self.first < self.whole_blocks()
    }

    /// Where the whole blocks begin: a delta may have been interrupted within one, if it was
    /// applied weight by weight.
    pub(super) fn whole_blocks(self) -> usize {
        self.first.next_multiple_of(BLOCK)
    }
}

impl<D: Delta> Kernel for Apply<'_, D> {
    /// Weights that were left as they are, because the sum is NaN or infinite.
    type Out = u32;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> u32 {
        let mut refused = 0;
        for i in (self.whole_blocks()..self.w.len()).step_by(BLOCK) {
            // SAFETY: `w` and `delta` have the same length, a multiple of a block; see `new`.
            unsafe {
                let delta = self.delta.block::<V>(i);
                let x = V::load(self.w.as_ptr().add(i));
                let mut next = x.plus(delta);
                if next.not_finite().any_magnitude() {
                    next = finite_or(next, x, &mut refused);
                }
                // Before the store: after a kill the next streamer finishes this block and goes on
                // behind it. A delta added twice to a weight would never be found out.
                note_block(self.journal, i, [x, next], None);
                next.store(self.w.as_ptr().add(i));
            }
        }
        refused
    }
}

/// Lane by lane `next` where it is finite, else `x`; counts the latter. For the rare block.
#[inline(always)]
fn finite_or<V: Lanes>(next: V, x: V, refused: &mut u32) -> V {
    let mut lanes = [[0; 4 * BLOCK]; 2];
    let [nexts, xs] = &mut lanes;
    // SAFETY: 64 bytes each.
    unsafe {
        next.store_bytes(nexts.as_mut_ptr());
        x.store_bytes(xs.as_mut_ptr());
    }
    for (next, x) in nexts.chunks_exact_mut(4).zip(xs.chunks_exact(4)) {
        if !float(next).is_finite() {
            next.copy_from_slice(x);
            *refused += 1;
        }
    }
    // SAFETY: 64 bytes.
    unsafe { V::load_bytes(nexts.as_ptr()) }
}
