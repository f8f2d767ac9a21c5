//! A block of 16 weights as the kernels see it, and the portable one.
//!
//! Every kernel is written once, over [`Lanes`]. The portable block [`Words`] is the
//! definition: a relaxed load or store per word. The vector blocks (`x86.rs`) stand for it.
//! A NEON block would be one more file like that; until then other processors use `Words`.

use std::marker::PhantomData;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release, SeqCst},
    compiler_fence,
};

#[cfg(target_arch = "x86_64")]
use super::fours::Halves;
use crate::weights::BLOCK;

/// Arithmetic that one weight and a block of them share, so that a rule is written once.
pub(crate) trait Arith: Copy {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    /// Without fusing into an addition.
    fn times(self, other: Self) -> Self;
    /// All lanes alike.
    fn splat(value: f32) -> Self;
    /// What lies outside of `-limit..=limit` is moved to its nearer end; none is NaN.
    fn within(self, limit: Self) -> Self;
    /// Zero in place of what is smaller than `limit`; none is NaN.
    fn zero_below(self, limit: Self) -> Self;
    /// Cut to the upper half of its bits: a bf16.
    fn upper_half(self) -> Self;
}

/// The upper half of an f32's bits.
pub(super) const UPPER_HALF: u32 = 0xffff_0000;

impl Arith for f32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn within(self, limit: Self) -> Self {
        self.min(limit).max(-limit)
    }
    #[inline(always)]
    fn zero_below(self, limit: Self) -> Self {
        if self.abs() < limit { 0.0 } else { self }
    }
    #[inline(always)]
    fn upper_half(self) -> Self {
        Self::from_bits(self.to_bits() & UPPER_HALF)
    }
}

/// A block of 16 f32.
///
/// Every function is `inline(always)`, so that it is compiled with the target features of
/// the kernel's entry. The vector implementations must only ever run on a processor that
/// has those features: that is the contract of `Kernel::run`.
pub(crate) trait Lanes: Arith {
    /// Loads from shared weights.
    ///
    /// # Safety
    /// `p` is valid for reads of 16 aligned f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Stores to shared weights.
    ///
    /// # Safety
    /// `p` is valid for writes of 16 aligned f32.
    unsafe fn store(self, p: *mut f32);
    /// Loads from private memory, for instance a frame.
    ///
    /// # Safety
    /// `p` is valid for reads of 64 bytes, aligned or not.
    unsafe fn load_bytes(p: *const u8) -> Self;
    /// Stores to private memory.
    ///
    /// # Safety
    /// `p` is valid for writes of 64 bytes, aligned or not.
    unsafe fn store_bytes(self, p: *mut u8);
    /// Stores the mark of the journal: after all stores before it, and before all stores behind it,
    /// in program order.
    fn store_mark(word: &AtomicU32, value: u32);
    /// Zero in place of lanes that are NaN or infinite, and which those were, one bit each.
    fn finite_or_zero(self) -> (Self, u32);
    /// Zero in finite lanes, NaN in the others: `x - x`, an instruction less than a comparison.
    #[inline(always)]
    fn not_finite(self) -> Self {
        self.minus(self)
    }
    /// The bits of both.
    fn or(self, other: Self) -> Self;
    /// True if a lane has a bit other than its sign.
    fn any_magnitude(self) -> bool;
}

/// How single words are written. A parameter only so that tests can die between two stores.
pub(crate) trait Memory: Copy {
    /// Stores a word.
    fn store(word: &AtomicU32, value: u32);
    /// Stores a word after every store before it and before every store behind it, in
    /// program order.
    fn store_mark(word: &AtomicU32, value: u32);
    /// Replaces `old` by `new`; false if the word held something else.
    fn exchange(word: &AtomicU32, old: u32, new: u32) -> bool;
    /// Stores two words, which are aligned to 8 bytes, at once.
    #[cfg(target_arch = "x86_64")]
    fn store_two(words: &[AtomicU32], values: u64);
    /// Replaces four words if all of them hold `old`.
    ///
    /// # Safety
    /// `words` is valid for four words, and [`fours::can`](super::fours::can).
    #[cfg(target_arch = "x86_64")]
    unsafe fn exchange_four(words: *mut u32, old: Halves, new: Halves) -> bool;
}

/// Memory as it is.
#[derive(Clone, Copy)]
pub(crate) struct Real;

impl Memory for Real {
    #[inline(always)]
    fn store(word: &AtomicU32, value: u32) {
        word.store(value, Relaxed);
    }
    #[inline(always)]
    fn store_mark(word: &AtomicU32, value: u32) {
        word.store(value, Release);
        compiler_fence(SeqCst);
    }
    #[inline(always)]
    fn exchange(word: &AtomicU32, old: u32, new: u32) -> bool {
        word.compare_exchange(old, new, Release, Relaxed).is_ok()
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn store_two(words: &[AtomicU32], values: u64) {
        assert_eq!(words.len(), 2);
        // SAFETY: two atomic words. Stands for two relaxed stores of a word each.
        unsafe {
            words
                .as_ptr()
                .cast_mut()
                .cast::<u64>()
                .write_volatile(values)
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn exchange_four(words: *mut u32, old: Halves, new: Halves) -> bool {
        // SAFETY: the caller's promise.
        unsafe { super::fours::exchange(words, old, new) }
    }
}

/// The portable block: 16 words, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Words<M = Real>([f32; BLOCK], PhantomData<M>);

impl<M: Memory> Words<M> {
    #[inline(always)]
    fn each(mut f: impl FnMut(usize) -> f32) -> Self {
        // A loop, not `array::from_fn`: that may be a call, with its array in memory.
        let mut all = [0.0; BLOCK];
        for (i, one) in all.iter_mut().enumerate() {
            *one = f(i);
        }
        Self(all, PhantomData)
    }
}

impl<M: Memory> Arith for Words<M> {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self::each(|i| self.0[i] + other.0[i])
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Self::each(|i| self.0[i] - other.0[i])
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i])
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self::each(|_| value)
    }
    #[inline(always)]
    fn within(self, limit: Self) -> Self {
        Self::each(|i| self.0[i].within(limit.0[i]))
    }
    #[inline(always)]
    fn zero_below(self, limit: Self) -> Self {
        Self::each(|i| self.0[i].zero_below(limit.0[i]))
    }
    #[inline(always)]
    fn upper_half(self) -> Self {
        Self::each(|i| self.0[i].upper_half())
    }
}

impl<M: Memory> Lanes for Words<M> {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self::each(|i| {
            // SAFETY: the caller's promise; AtomicU32 is as large and as aligned as f32.
            let word = unsafe { AtomicU32::from_ptr(p.add(i).cast_mut().cast()) };
            f32::from_bits(word.load(Relaxed))
        })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, value) in self.0.into_iter().enumerate() {
            // SAFETY: as in `load`.
            let word = unsafe { AtomicU32::from_ptr(p.add(i).cast()) };
            M::store(word, value.to_bits());
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self {
        // SAFETY: the caller's promise; an array of bytes has no alignment.
        let bytes = unsafe { p.cast::<[[u8; 4]; BLOCK]>().read() };
        Self::each(|i| f32::from_le_bytes(bytes[i]))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8) {
        // SAFETY: as in `load_bytes`.
        unsafe {
            p.cast::<[[u8; 4]; BLOCK]>()
                .write(self.0.map(f32::to_le_bytes))
        }
    }
    #[inline(always)]
    fn store_mark(word: &AtomicU32, value: u32) {
        M::store_mark(word, value);
    }
    #[inline(always)]
    fn finite_or_zero(self) -> (Self, u32) {
        let mut bad = 0;
        for (i, x) in self.0.iter().enumerate() {
            bad |= u32::from(!x.is_finite()) << i;
        }
        (
            Self::each(|i| {
                if self.0[i].is_finite() {
                    self.0[i]
                } else {
                    0.0
                }
            }),
            bad,
        )
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self::each(|i| f32::from_bits(self.0[i].to_bits() | other.0[i].to_bits()))
    }
    #[inline(always)]
    fn any_magnitude(self) -> bool {
        self.0.iter().any(|x| x.to_bits() << 1 != 0)
    }
}
