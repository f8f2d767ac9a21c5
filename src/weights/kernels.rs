//! Bulk kernels over shared weights, chosen once at run time.
//!
//! Touch only the memory they are given. Payloads of frames are bytes: f32, little-endian,
//! aligned or not. Lengths are checked here, once per call; a wrong one is a bug of the
//! caller and panics.
//!
//! Every kernel exists once, generic over a block of 16 weights (`lanes.rs`). It runs on AVX-512,
//! on AVX2, or as the portable loop of relaxed loads and stores per word, which defines it. A
//! property test holds them equal bit for bit (but for the payload of a NaN, which the language
//! leaves open).
//!
//! # -0.0
//!
//! `pos + 0.0` must be `pos`, bit for bit, or replicas at rest would drift apart in the sign of a
//! zero. Adding 0.0 changes exactly one value, -0.0, so **weights never hold -0.0**: `copy_in*`,
//! `adopt` and [`WeightsView::store`] store `x + 0.0`. No kernel can then make one, in
//! round-to-nearest (the only mode Rust knows; flushing of denormals must stay off):
//! - a sum is -0.0 only if both terms are, because x + (-x) is +0.0 and a sum that is
//!   not zero never rounds to zero (it is a multiple of the least denormal);
//! - a difference `x - last` is -0.0 only if x is -0.0 and last +0.0; x is a weight, so it is not;
//!   what is not finite is replaced by +0.0; hence `d`, and `sent` with it, is never -0.0;
//! - so `pos + d`, `pos + sent` and then `b + d` have a term that is not -0.0, as have `w + delta`
//!   and `w + a * x` in `w`. (A delta that leaves scaled may be -0.0: it is only ever added.)

mod apply;
mod copy;
#[cfg(target_arch = "x86_64")]
mod fours;
mod lanes;
mod put_back;
mod rounded;
mod take;
mod views;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use apply::Apply;
use copy::{AddScalar, AnyNonFinite, Axpy, CopyIn, CopyOut, CopyOutChecked};
use lanes::{Lanes, Words};
pub(super) use lanes::{Memory, Real};
use rounded::{LargestMoves, Rounded};
pub use rounded::{Rounding, STEP_BLOCK};
use take::{Adopt, Confirmed, Forget, Keep, Take, Unconfirmed};
use views::{AddView, Delta, TakeView};

use super::BLOCK;
use super::journal::Journal;
use super::view::WeightsView;

/// How a kernel writes weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Whole vectors: what solvers add between the load and the store is lost (Hogwild).
    Racy,
    /// Word by word, each exchanged against the value that was read: what others add
    /// atomically is never lost. Many times slower.
    Atomic,
}

/// What a take found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Some weight had moved since the last position.
    pub moved: bool,
    /// Weights whose movement was NaN or infinite and was replaced by 0, which heals them.
    pub non_finite: u32,
}

/// An instruction set that kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Relaxed loads and stores, word by word.
    Portable,
    /// 256-bit vectors.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

/// A kernel as a value: its arguments, checked, and the loop.
trait Kernel {
    type Out;
    /// Runs it in blocks of type `V`.
    ///
    /// # Safety
    /// The processor has the instruction set that `V` stands for.
    unsafe fn run<V: Lanes>(self) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn on_avx512<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: a caller of this function has AVX-512F.
    unsafe { kernel.run::<x86::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn on_avx2<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: a caller of this function has AVX2.
    unsafe { kernel.run::<x86::Avx2>() }
}

/// The kernels on one instruction set. Programs use the functions of this module, which
/// take the best; tests and benchmarks compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels(Isa);

impl Kernels {
    /// All that this processor has, the portable one first, the best last.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self(Isa::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                all.push(Self(Isa::Avx2));
            }
            if std::is_x86_feature_detected!("avx512f") {
                all.push(Self(Isa::Avx512));
            }
        }
        all
    }

    /// The best that this processor has; found out once.
    #[inline]
    pub fn best() -> Self {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the portable one"))
    }

    /// What it runs on.
    pub fn isa(self) -> Isa {
        self.0
    }

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            // SAFETY: the portable blocks need no instruction set.
            Isa::Portable => unsafe { kernel.run::<Words>() },
            // SAFETY: a `Kernels` of this kind exists only if the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { on_avx2(kernel) },
            // SAFETY: a `Kernels` of this kind exists only if the processor has AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { on_avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => unreachable!("never among the available ones"),
        }
    }

    fn take<R: take::Rule>(self, take: Take<R>, writes: Writes) -> Taken {
        match writes {
            Writes::Racy => self.run(take),
            Writes::Atomic => take.run_atomic::<Real>(),
        }
    }

    fn apply<D: Delta>(self, apply: Apply<'_, D>, writes: Writes) -> u32 {
        match writes {
            Writes::Racy => {
                let refused = if apply.begins_within_a_block() {
                    apply.run_atomic::<Real>(apply.whole_blocks())
                } else {
                    0
                };
                refused + self.run(apply)
            }
            Writes::Atomic => apply.run_atomic::<Real>(apply.len()),
        }
    }
}

/// Panics unless a payload fits the weights, and both are whole blocks.
#[inline]
fn check_blocks(weights: usize, bytes: usize) {
    assert!(
        weights.is_multiple_of(BLOCK),
        "{weights} weights are not whole blocks of {BLOCK}"
    );
    assert_eq!(weights * 4, bytes, "4 bytes per weight");
}

/// The bytes of f32, which are what a frame carries (little-endian only).
fn bytes_of(x: &[f32]) -> &[u8] {
    // SAFETY: the same memory; bytes have no alignment and any f32 is valid as bytes.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

fn bytes_of_mut(x: &mut [f32]) -> &mut [u8] {
    // SAFETY: the same memory; any bytes are valid as f32.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
}

/// Declares each kernel twice: as a method of [`Kernels`], and as a function on the best.
macro_rules! kernels {
    ($($(#[$doc:meta])* fn $name:ident($self:ident $(, $arg:ident: $type:ty)*) $(-> $out:ty)? $body:block)*) => {
        impl Kernels {
            $($(#[$doc])* #[inline]
            #[allow(clippy::too_many_arguments, reason = "one array each, no struct to build per chunk")]
            pub fn $name($self $(, $arg: $type)*) $(-> $out)? $body)*
        }
        $($(#[$doc])* #[inline]
        #[allow(clippy::too_many_arguments, reason = "one array each, no struct to build per chunk")]
        pub fn $name($($arg: $type),*) $(-> $out)? { Kernels::best().$name($($arg),*) })*
    };
}

kernels! {
    /// Copies weights out. `out` is as long as `w`; any length.
    fn copy_out(self, w: WeightsView, out: &mut [f32]) {
        self.run(CopyOut { w, out: bytes_of_mut(out) })
    }

    /// Copies weights out into a payload of 4 bytes each; any length.
    fn copy_out_bytes(self, w: WeightsView, out: &mut [u8]) {
        self.run(CopyOut { w, out })
    }

    /// As [`copy_out_bytes`]; true if a NaN or an infinity is among the weights copied.
    fn copy_out_checked(self, w: WeightsView, out: &mut [u8]) -> bool {
        self.run(CopyOutChecked { w, out })
    }

    /// Copies into weights, -0.0 as 0.0. `from` is as long as `w`; any length.
    fn copy_in(self, w: WeightsView, from: &[f32]) {
        self.run(CopyIn { w, from: bytes_of(from) })
    }

    /// Copies a payload of 4 bytes each into weights, -0.0 as 0.0; any length.
    fn copy_in_bytes(self, w: WeightsView, from: &[u8]) {
        self.run(CopyIn { w, from })
    }

    /// `w += a * x`, multiplied, rounded, then added. `x` is as long as `w`; any length.
    fn racy_axpy(self, w: WeightsView, a: f32, x: &[f32]) {
        self.run(Axpy { w, a, x })
    }

    /// `w += a`; any length.
    fn racy_add_scalar(self, w: WeightsView, a: f32) {
        self.run(AddScalar { w, a })
    }

    /// `w += a`, losing nothing that others write; any length.
    fn atomic_add_scalar(self, w: WeightsView, a: f32) {
        for i in 0..w.len() {
            w.atomic_add(i, a);
        }
    }

    /// True if a NaN or an infinity is among the f32 of a payload (4 bytes each).
    fn any_non_finite(self, payload: &[u8]) -> bool {
        self.run(AnyNonFinite(payload))
    }

    /// Takes a position that confirms `sent`: `d = w - last; w = last = pos + d;
    /// sent = d; out = d * scale`. Whole blocks; all arrays of the chunk's length.
    fn take_confirmed(self, w: WeightsView, last: WeightsView, sent: WeightsView, pos: &[u8], out: &mut [u8], scale: f32, journal: &Journal, writes: Writes) -> Taken {
        self.take(Take::new(Confirmed, w, last, Some(sent), pos, Some(out), Some(journal)).scaled(scale), writes)
    }

    /// As [`take_confirmed`] where `out` will leave rounded: `d = w - last; out = rounded(d *
    /// portion); sent = out / portion; w = pos + d; last = pos + sent`, so that what was left out
    /// stays in `w - last`. Whole blocks.
    fn take_rounded(self, w: WeightsView, last: WeightsView, sent: WeightsView, pos: &[u8], out: &mut [u8], rounding: Rounding, portion: f32, journal: &Journal, writes: Writes) -> Taken {
        if let Rounding::Steps(steps, _) = rounding {
            assert_eq!(steps.len(), w.len().div_ceil(STEP_BLOCK), "a step for each block");
        }
        self.take(Take::new(Rounded { rounding, portion }, w, last, Some(sent), pos, Some(out), Some(journal)), writes)
    }

    /// The largest `|w - last|` of each [`STEP_BLOCK`] weights; what is NaN or infinite counts
    /// as 0. Whole blocks of 16.
    fn largest_moves(self, w: WeightsView, last: WeightsView, out: &mut [f32]) {
        self.run(LargestMoves::new(w, last, out))
    }

    /// Takes a position that does not confirm `sent`: `d = w - last; last = pos + sent;
    /// w = last + d; out = sent * scale`. Whole blocks; all arrays of the chunk's length.
    fn take_unconfirmed(self, w: WeightsView, last: WeightsView, sent: WeightsView, pos: &[u8], out: Option<&mut [u8]>, scale: f32, journal: &Journal, writes: Writes) -> Taken {
        self.take(Take::new(Unconfirmed, w, last, Some(sent), pos, out, Some(journal)).scaled(scale), writes)
    }

    /// Takes a position that confirms `sent` when there is no slot to send from: `d = w - last;
    /// w = pos + d; last = pos`, so that the delta stays in `w - last`. Whole blocks.
    fn take_keep(self, w: WeightsView, last: WeightsView, pos: &[u8], journal: &Journal, writes: Writes) -> Taken {
        self.take(Take::new(Keep, w, last, None, pos, None, Some(journal)), writes)
    }

    /// Takes a position, fire and forget: `d = w - last; w = last = pos + d; out = d * scale`.
    /// Whole blocks. No journal: what a kill or a lost frame takes is gone.
    fn take_forget(self, w: WeightsView, last: WeightsView, pos: &[u8], out: &mut [u8], scale: f32, writes: Writes) -> Taken {
        self.take(Take::new(Forget, w, last, None, pos, Some(out), None).scaled(scale), writes)
    }

    /// [`take_forget`] with everything in shared memory, racy: `d = w - last; w = last = pos + d;
    /// out = d`. Here `w` may hold -0.0; `d` never does. Whole blocks.
    fn take_view(self, w: WeightsView, last: WeightsView, pos: WeightsView, out: WeightsView) -> Taken {
        self.run(TakeView::new(w, last, pos, out))
    }

    /// `w += x` with both in shared memory. Whole blocks.
    fn add_view(self, w: WeightsView, x: WeightsView) {
        self.run(AddView::new(w, x))
    }

    /// Takes the first position ever: `w = last = pos; sent = 0`. Whole blocks.
    fn adopt(self, w: WeightsView, last: WeightsView, sent: WeightsView, pos: &[u8]) {
        self.run(Adopt::new(w, last, sent, pos))
    }

    /// Puts what is outstanding back: `last -= sent` from weight `first_weight` on (0, or what
    /// [`Journal::recover`] found done). The caller has begun the journal at the same weight.
    fn put_back(self, last: WeightsView, sent: WeightsView, first_weight: u32, journal: &Journal) {
        put_back::put_back::<Real>(last, sent, first_weight, journal);
    }

    /// Adds a delta from weight `first_weight` on (0, or what [`Journal::recover`] found
    /// done). The caller has refused it if [`any_non_finite`], and has begun the journal at
    /// the same weight. Whole blocks. Weights for which the sum is NaN or infinite stay as they
    /// are; returns how many those were.
    fn apply_delta(self, w: WeightsView, delta: &[u8], first_weight: u32, journal: &Journal, writes: Writes) -> u32 {
        self.apply(Apply::new(w, delta, first_weight, journal), writes)
    }

    /// [`apply_delta`] from shared memory: what came down from a device.
    fn apply_view(self, w: WeightsView, delta: WeightsView, first_weight: u32, journal: &Journal, writes: Writes) -> u32 {
        self.apply(Apply::new(w, delta, first_weight, journal), writes)
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;
