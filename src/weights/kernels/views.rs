//! Passes whose every operand is shared memory: a device's on the host, or a landing place.
//!
//! As the kernels over payloads, but through views only, whole blocks. Invariant: the arithmetic
//! and its order are those of their siblings on payloads.

use super::lanes::Lanes;
use super::{Kernel, Taken};
use crate::weights::BLOCK;
use crate::weights::view::WeightsView;

/// Panics unless all are of one length, in whole blocks.
fn check(first: WeightsView<'_>, others: &[WeightsView<'_>]) {
    assert!(
        first.len().is_multiple_of(BLOCK) && others.iter().all(|o| o.len() == first.len()),
        "views of {} weights and {:?}, which must be one length in whole blocks of {BLOCK}",
        first.len(),
        others.iter().map(WeightsView::len).collect::<Vec<_>>()
    );
}

/// A position taken by a slave that sends and forgets.
pub(super) struct TakeView<'a> {
    w: WeightsView<'a>,
    last: WeightsView<'a>,
    pos: WeightsView<'a>,
    out: WeightsView<'a>,
}

impl<'a> TakeView<'a> {
    pub(super) fn new(
        w: WeightsView<'a>,
        last: WeightsView<'a>,
        pos: WeightsView<'a>,
        out: WeightsView<'a>,
    ) -> Self {
        check(w, &[last, pos, out]);
        Self { w, last, pos, out }
    }
}

impl Kernel for TakeView<'_> {
    type Out = Taken;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> Taken {
        let zero = V::splat(0.0);
        let (mut moved, mut non_finite) = (zero, 0);
        for i in (0..self.w.len()).step_by(BLOCK) {
            // SAFETY: every view has `w.len()` weights, a multiple of a block; see `new`.
            unsafe {
                let pos = V::load(self.pos.as_ptr().add(i));
                let last = V::load(self.last.as_ptr().add(i));
                // Last of all loads: from here to the store of `w`, what solvers add is lost.
                let x = V::load(self.w.as_ptr().add(i));
                let (d, bad) = x.minus(last).finite_or_zero();
                // Plus zero: a solver on the device may leave -0.0 in its weights.
                let d = d.plus(zero);
                let next = pos.plus(d);
                next.store(self.w.as_ptr().add(i));
                next.store(self.last.as_ptr().add(i));
                d.store(self.out.as_ptr().add(i));
                moved = moved.or(d);
                non_finite += bad.count_ones();
            }
        }
        Taken {
            moved: moved.any_magnitude(),
            non_finite,
        }
    }
}

/// Where a delta comes from: a payload, or a view.
pub(super) trait Delta: Copy {
    /// Bytes of it.
    fn bytes(self) -> usize;
    /// The block from weight `i` on.
    ///
    /// # Safety
    /// `i + 16` weights are there, and the processor has the instruction set that `V` stands for.
    unsafe fn block<V: Lanes>(self, i: usize) -> V;
    /// Weight `i`.
    fn one(self, i: usize) -> f32;
    /// Where it begins, aligned or not.
    #[cfg(target_arch = "x86_64")]
    fn begin(self) -> *const f32;
}

impl Delta for &[u8] {
    fn bytes(self) -> usize {
        self.len()
    }
    #[inline(always)]
    unsafe fn block<V: Lanes>(self, i: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bytes(self.as_ptr().add(i * 4)) }
    }
    #[inline]
    fn one(self, i: usize) -> f32 {
        super::take::float(&self[i * 4..i * 4 + 4])
    }
    #[cfg(target_arch = "x86_64")]
    fn begin(self) -> *const f32 {
        self.as_ptr().cast()
    }
}

impl Delta for WeightsView<'_> {
    fn bytes(self) -> usize {
        self.len() * 4
    }
    #[inline(always)]
    unsafe fn block<V: Lanes>(self, i: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(self.as_ptr().add(i)) }
    }
    #[inline]
    fn one(self, i: usize) -> f32 {
        self.load(i)
    }
    #[cfg(target_arch = "x86_64")]
    fn begin(self) -> *const f32 {
        WeightsView::as_ptr(&self)
    }
}

/// One array added to another.
pub(super) struct AddView<'a> {
    w: WeightsView<'a>,
    x: WeightsView<'a>,
}

impl<'a> AddView<'a> {
    pub(super) fn new(w: WeightsView<'a>, x: WeightsView<'a>) -> Self {
        check(w, &[x]);
        Self { w, x }
    }
}

impl Kernel for AddView<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for i in (0..self.w.len()).step_by(BLOCK) {
            // SAFETY: both have the same length, a multiple of a block; see `new`.
            unsafe {
                let w = self.w.as_ptr().add(i);
                V::load(w).plus(V::load(self.x.as_ptr().add(i))).store(w);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::super::{Kernels, Writes};
    use super::*;

    fn words(values: impl Iterator<Item = f32>) -> Vec<AtomicU32> {
        values.map(|x| AtomicU32::new(x.to_bits())).collect()
    }

    fn bits(words: &[AtomicU32]) -> Vec<u32> {
        WeightsView::of(words)
            .words()
            .iter()
            .map(|w| w.load(std::sync::atomic::Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn a_take_through_views_is_the_take_of_a_payload() {
        let n = 160;
        let value = |i: usize| match i % 23 {
            7 => f32::NAN,
            8 => f32::INFINITY,
            k => (k as f32 - 11.0) * 0.37 + i as f32 * 1e-3,
        };
        let pos: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 - 3.0).collect();
        let payload: Vec<u8> = pos.iter().flat_map(|x| x.to_le_bytes()).collect();
        for kernels in Kernels::available() {
            let (w, last) = (words((0..n).map(value)), words((0..n).map(|i| i as f32)));
            let mut out = vec![0; n * 4];
            let [vw, vl] = [&w, &last].map(|x| WeightsView::of(x));
            let taken = kernels.take_forget(vw, vl, &payload, &mut out, 1.0, Writes::Racy);
            let (w2, last2) = (words((0..n).map(value)), words((0..n).map(|i| i as f32)));
            let (pos2, out2) = (words(pos.iter().copied()), words((0..n).map(|_| 9.0)));
            let [vw, vl, vp, vo] = [&w2, &last2, &pos2, &out2].map(|x| WeightsView::of(x));
            assert_eq!(kernels.take_view(vw, vl, vp, vo), taken);
            assert!(taken.moved && taken.non_finite > 0);
            assert_eq!((bits(&w), bits(&last)), (bits(&w2), bits(&last2)));
            let out: Vec<u32> = out
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| u32::from_le_bytes(*b))
                .collect();
            assert_eq!(out, bits(&out2));
        }
    }

    #[test]
    fn a_weight_of_minus_zero_gives_a_delta_of_zero() {
        for kernels in Kernels::available() {
            let w = words((0..16).map(|_| -0.0));
            let [last, pos, out] = [(); 3].map(|()| words((0..16).map(|_| 0.0)));
            let [vw, vl, vp, vo] = [&w, &last, &pos, &out].map(|x| WeightsView::of(x));
            assert!(!kernels.take_view(vw, vl, vp, vo).moved);
            assert_eq!((bits(&w), bits(&out)), (vec![0; 16], vec![0; 16]));
        }
    }

    #[test]
    fn views_add_word_by_word() {
        for kernels in Kernels::available() {
            let w = words((0..48).map(|i| i as f32));
            let x = words((0..48).map(|i| 0.5 - i as f32 * 3.0));
            kernels.add_view(WeightsView::of(&w), WeightsView::of(&x));
            assert!(
                (0..48).all(|i| WeightsView::of(&w).load(i) == i as f32 + (0.5 - i as f32 * 3.0))
            );
        }
    }
}
