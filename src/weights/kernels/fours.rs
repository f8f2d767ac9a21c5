//! A delta added to four weights at once, losing nothing that others write to any of them.
//!
//! x86-64 has one locked exchange of 16 bytes (`cmpxchg16b`). Locked instructions are one after the
//! other whatever their size, so others may exchange the same weights one by one meanwhile. The
//! exchange waits for all stores and loads before it, and none behind it begins: so what is between
//! two of them is short, in vectors, and the journal is written in halves of 8 bytes.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::apply::Apply;
use super::lanes::Memory;
use super::views::Delta;
use crate::weights::BLOCK;
use crate::weights::journal::{FOUR, mark};

/// Whether four weights from `words` on can be exchanged at once: this processor can, and they are
/// aligned.
pub(super) fn can(words: *const f32) -> bool {
    std::is_x86_feature_detected!("cmpxchg16b") && words.addr().is_multiple_of(16)
}

/// Two words each.
pub(super) type Halves = [u64; 2];

impl<D: Delta> Apply<'_, D> {
    /// Adds the delta to `weights`, whole fours. Returns how many were left as they are.
    ///
    /// # Safety
    /// [`can`], for the first of all weights.
    pub(super) unsafe fn run_fours<M: Memory>(self, weights: Range<usize>) -> u32 {
        assert!(weights.end <= self.len());
        let mut refused = 0;
        for i in weights.step_by(FOUR) {
            let words = self.words(i);
            loop {
                // SAFETY: four weights and as many of the delta are there, see above; aligned.
                let (before, after, kept) = unsafe { sum(words, self.delta(i)) };
                self.note::<M>(i, before, after);
                // SAFETY: as above, and the caller's promise.
                if unsafe { M::exchange_four(words, before, after) } {
                    // At once: a solver may move these weights on.
                    M::store_mark(&self.journal().mark, mark(i + FOUR, 0));
                    refused += kept;
                    break;
                }
            }
        }
        refused
    }

    /// First that no weight is in flight, then the values of four, then that they are.
    #[inline(always)]
    fn note<M: Memory>(self, i: usize, before: Halves, after: Halves) {
        let journal = self.journal();
        let entry = journal.entry(i, FOUR);
        let at = i % BLOCK;
        M::store_mark(&journal.mark, mark(i, 0));
        for (place, values) in [(&entry.before, before), (&entry.after, after)] {
            let place: &[AtomicU32] = &place[at..at + FOUR];
            M::store_two(&place[..2], values[0]);
            M::store_two(&place[2..], values[1]);
        }
        M::store_mark(&journal.mark, mark(i + FOUR, FOUR));
    }
}

/// Four weights, what they become, and how many stay as they are because their sum is NaN or
/// infinite.
///
/// # Safety
/// `words` is valid for reads of four and aligned to 16 bytes, `delta` for reads of 16 bytes.
#[inline(always)]
unsafe fn sum(words: *const u32, delta: *const f32) -> (Halves, Halves, u32) {
    // SAFETY: the caller's promise; SSE2 is part of x86-64. The loads stand for four relaxed ones.
    unsafe {
        let before = _mm_load_ps(words.cast());
        let sum = _mm_add_ps(before, _mm_loadu_ps(delta));
        let difference = _mm_sub_ps(sum, sum);
        let bad = _mm_cmpunord_ps(difference, difference);
        let after = _mm_or_ps(_mm_and_ps(bad, before), _mm_andnot_ps(bad, sum));
        let halves = |four| std::mem::transmute::<__m128, Halves>(four);
        let kept = (_mm_movemask_ps(bad) as u32).count_ones();
        (halves(before), halves(after), kept)
    }
}

/// Replaces four words if all of them hold `old`.
///
/// # Safety
/// `words` is valid for four words and aligned to 16 bytes; the processor has `cmpxchg16b`.
#[inline(always)]
pub(super) unsafe fn exchange(words: *mut u32, old: Halves, new: Halves) -> bool {
    let (found_low, found_high): (u64, u64);
    // Not the intrinsic: LLVM inlines it into functions that do not have the feature, and calls a
    // library then.
    // SAFETY: the caller's promise. The compiler keeps rbx for itself, so it is put back.
    unsafe {
        asm!(
            "xchg {low}, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, {low}",
            low = inout(reg) new[0] => _,
            in("rcx") new[1],
            in("rdi") words,
            inout("rax") old[0] => found_low,
            inout("rdx") old[1] => found_high,
            options(nostack),
        );
    }
    [found_low, found_high] == old
}
