//! Copies in and out, additions, and the scan of a frame: any length, whole blocks first.
//!
//! Every kernel here is one loop over blocks and one over the words left. Invariant: the
//! second does exactly what the portable block does to a word.

use super::Kernel;
use super::lanes::Lanes;
use crate::weights::BLOCK;
use crate::weights::view::WeightsView;

/// Weights out into private bytes. The destination has 4 bytes per weight.
pub(super) struct CopyOut<'a> {
    pub(super) w: WeightsView<'a>,
    pub(super) out: &'a mut [u8],
}

impl Kernel for CopyOut<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        assert_eq!(self.w.len() * 4, self.out.len(), "4 bytes per weight");
        let whole = self.w.len() / BLOCK * BLOCK;
        for i in (0..whole).step_by(BLOCK) {
            // SAFETY: `i + 16` weights are there on both sides.
            unsafe {
                V::load(self.w.as_ptr().add(i)).store_bytes(self.out.as_mut_ptr().add(i * 4))
            };
        }
        for i in whole..self.w.len() {
            self.out[i * 4..i * 4 + 4].copy_from_slice(&self.w.load(i).to_le_bytes());
        }
    }
}

/// As [`CopyOut`]; true if a NaN or an infinity was among the weights.
pub(super) struct CopyOutChecked<'a> {
    pub(super) w: WeightsView<'a>,
    pub(super) out: &'a mut [u8],
}

impl Kernel for CopyOutChecked<'_> {
    type Out = bool;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> bool {
        assert_eq!(self.w.len() * 4, self.out.len(), "4 bytes per weight");
        let whole = self.w.len() / BLOCK * BLOCK;
        let mut bad = V::splat(0.0);
        for i in (0..whole).step_by(BLOCK) {
            // SAFETY: `i + 16` weights are there on both sides.
            unsafe {
                let x = V::load(self.w.as_ptr().add(i));
                x.store_bytes(self.out.as_mut_ptr().add(i * 4));
                bad = bad.or(x.not_finite());
            }
        }
        let mut any = bad.any_magnitude();
        for i in whole..self.w.len() {
            let x = self.w.load(i);
            any |= !x.is_finite();
            self.out[i * 4..i * 4 + 4].copy_from_slice(&x.to_le_bytes());
        }
        any
    }
}

/// Private bytes into weights, -0.0 as 0.0.
pub(super) struct CopyIn<'a> {
    pub(super) w: WeightsView<'a>,
    pub(super) from: &'a [u8],
}

impl Kernel for CopyIn<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        assert_eq!(self.w.len() * 4, self.from.len(), "4 bytes per weight");
        let whole = self.w.len() / BLOCK * BLOCK;
        let zero = V::splat(0.0);
        for i in (0..whole).step_by(BLOCK) {
            // SAFETY: `i + 16` weights are there on both sides.
            unsafe {
                V::load_bytes(self.from.as_ptr().add(i * 4))
                    .plus(zero)
                    .store(self.w.as_ptr().add(i))
            };
        }
        for (i, bytes) in self.from.as_chunks::<4>().0.iter().enumerate().skip(whole) {
            self.w.store(i, f32::from_le_bytes(*bytes));
        }
    }
}

/// `w += a * x`, multiplied and then added.
pub(super) struct Axpy<'a> {
    pub(super) w: WeightsView<'a>,
    pub(super) a: f32,
    pub(super) x: &'a [f32],
}

impl Kernel for Axpy<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        assert_eq!(self.w.len(), self.x.len(), "one x per weight");
        let whole = self.w.len() / BLOCK * BLOCK;
        let a = V::splat(self.a);
        for i in (0..whole).step_by(BLOCK) {
            // SAFETY: `i + 16` weights are there on both sides.
            unsafe {
                let step = a.times(V::load_bytes(self.x.as_ptr().add(i).cast()));
                let w = self.w.as_ptr().add(i);
                V::load(w).plus(step).store(w);
            }
        }
        for i in whole..self.w.len() {
            self.w.store(i, self.w.load(i) + self.a * self.x[i]);
        }
    }
}

/// `w += a`.
pub(super) struct AddScalar<'a> {
    pub(super) w: WeightsView<'a>,
    pub(super) a: f32,
}

impl Kernel for AddScalar<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let whole = self.w.len() / BLOCK * BLOCK;
        let a = V::splat(self.a);
        for i in (0..whole).step_by(BLOCK) {
            // SAFETY: `i + 16` weights are there.
            unsafe {
                let w = self.w.as_ptr().add(i);
                V::load(w).plus(a).store(w);
            }
        }
        for i in whole..self.w.len() {
            self.w.racy_add(i, self.a);
        }
    }
}

/// True if a NaN or an infinity is among the f32 in the bytes.
pub(super) struct AnyNonFinite<'a>(pub(super) &'a [u8]);

impl Kernel for AnyNonFinite<'_> {
    type Out = bool;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> bool {
        let (blocks, rest) = self.0.as_chunks::<{ BLOCK * 4 }>();
        let mut bad = 0;
        for block in blocks {
            // SAFETY: a block has 64 bytes.
            bad |= unsafe { V::load_bytes(block.as_ptr()) }.finite_or_zero().1;
        }
        bad != 0
            || rest
                .as_chunks::<4>()
                .0
                .iter()
                .any(|b| !f32::from_le_bytes(*b).is_finite())
    }
}
