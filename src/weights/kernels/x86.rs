//! Blocks of 16 weights as AVX-512 and AVX2 vectors.
//!
//! Explicit loads and stores of whole vectors, each standing for the relaxed per-word loop of
//! `lanes::Words`. On x86-64 an aligned 32-bit lane of a vector access is never torn. So another
//! process sees some words of a vector store, each whole, as it may see of that loop too. (The
//! language has no name for such an access; the intrinsics are the boundary, as a system call would
//! be.)

use std::arch::x86_64::*;
use std::sync::atomic::AtomicU32;

use super::lanes::{Arith, Lanes, Memory, Real, UPPER_HALF};

const MAGNITUDE: i32 = 0x7fff_ffff;

/// One AVX-512 register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

// SAFETY (all blocks below): intrinsics need the processor to have AVX-512F, which the contract of
// `Kernel::run` demands of the caller that chooses this type; the pointers are the callers'.
impl Arith for Avx512 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: AVX-512F, as above.
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    fn within(self, limit: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        unsafe {
            let low = _mm512_sub_ps(_mm512_setzero_ps(), limit.0);
            Self(_mm512_max_ps(_mm512_min_ps(self.0, limit.0), low))
        }
    }
    #[inline(always)]
    fn zero_below(self, limit: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        unsafe {
            let stays = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(_mm512_abs_ps(self.0), limit.0);
            Self(_mm512_maskz_mov_ps(stays, self.0))
        }
    }
    #[inline(always)]
    fn upper_half(self) -> Self {
        // SAFETY: AVX-512F, as above.
        unsafe {
            let mask = _mm512_set1_epi32(UPPER_HALF as i32);
            Self(_mm512_castsi512_ps(_mm512_and_si512(
                _mm512_castps_si512(self.0),
                mask,
            )))
        }
    }
}

impl Lanes for Avx512 {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise. Stands for 16 relaxed loads.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise. Stands for 16 relaxed stores.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self {
        // SAFETY: the caller's promise; `loadu` has no alignment.
        Self(unsafe { _mm512_loadu_ps(p.cast()) })
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8) {
        // SAFETY: the caller's promise; `storeu` has no alignment.
        unsafe { _mm512_storeu_ps(p.cast(), self.0) }
    }
    #[inline(always)]
    fn store_mark(word: &AtomicU32, value: u32) {
        Real::store_mark(word, value);
    }
    #[inline(always)]
    fn finite_or_zero(self) -> (Self, u32) {
        // SAFETY: AVX-512F, as above. An ordered comparison: NaN is not less than infinity.
        unsafe {
            let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(
                _mm512_abs_ps(self.0),
                _mm512_set1_ps(f32::INFINITY),
            );
            (
                Self(_mm512_maskz_mov_ps(finite, self.0)),
                u32::from(!finite),
            )
        }
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        unsafe {
            let bits = _mm512_or_si512(_mm512_castps_si512(self.0), _mm512_castps_si512(other.0));
            Self(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    fn any_magnitude(self) -> bool {
        // SAFETY: AVX-512F, as above.
        unsafe {
            _mm512_test_epi32_mask(_mm512_castps_si512(self.0), _mm512_set1_epi32(MAGNITUDE)) != 0
        }
    }
}

/// Two AVX registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

// SAFETY (all blocks below): as for `Avx512`, with AVX2.
impl Arith for Avx2 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            Self(
                _mm256_sub_ps(self.0, other.0),
                _mm256_sub_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            Self(
                _mm256_mul_ps(self.0, other.0),
                _mm256_mul_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: AVX2, as above.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    fn within(self, limit: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            let zero = _mm256_setzero_ps();
            let within =
                |x, limit| _mm256_max_ps(_mm256_min_ps(x, limit), _mm256_sub_ps(zero, limit));
            Self(within(self.0, limit.0), within(self.1, limit.1))
        }
    }
    #[inline(always)]
    fn zero_below(self, limit: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(MAGNITUDE));
            let stays = |x, limit| {
                let bits = _mm256_cmp_ps::<_CMP_GE_OQ>(_mm256_and_ps(x, magnitude), limit);
                _mm256_and_ps(x, bits)
            };
            Self(stays(self.0, limit.0), stays(self.1, limit.1))
        }
    }
    #[inline(always)]
    fn upper_half(self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            let mask = _mm256_castsi256_ps(_mm256_set1_epi32(UPPER_HALF as i32));
            Self(_mm256_and_ps(self.0, mask), _mm256_and_ps(self.1, mask))
        }
    }
}

impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise. Stands for 16 relaxed loads.
        unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise. Stands for 16 relaxed stores.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self {
        // SAFETY: the caller's promise; `loadu` has no alignment.
        unsafe { Self(_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8) {
        // SAFETY: the caller's promise; `storeu` has no alignment.
        unsafe {
            _mm256_storeu_ps(p.cast(), self.0);
            _mm256_storeu_ps(p.add(32).cast(), self.1);
        }
    }
    #[inline(always)]
    fn store_mark(word: &AtomicU32, value: u32) {
        Real::store_mark(word, value);
    }
    #[inline(always)]
    fn finite_or_zero(self) -> (Self, u32) {
        // SAFETY: AVX2, as above. An ordered comparison: NaN is not less than infinity.
        unsafe {
            let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(MAGNITUDE));
            let infinity = _mm256_set1_ps(f32::INFINITY);
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_and_ps(self.0, magnitude), infinity);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_and_ps(self.1, magnitude), infinity);
            let finite = _mm256_movemask_ps(low) as u32 | (_mm256_movemask_ps(high) as u32) << 8;
            (
                Self(_mm256_and_ps(self.0, low), _mm256_and_ps(self.1, high)),
                finite ^ 0xffff,
            )
        }
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        unsafe { Self(_mm256_or_ps(self.0, other.0), _mm256_or_ps(self.1, other.1)) }
    }
    #[inline(always)]
    fn any_magnitude(self) -> bool {
        // SAFETY: AVX2, as above.
        unsafe {
            let both = _mm256_castps_si256(_mm256_or_ps(self.0, self.1));
            _mm256_testz_si256(both, _mm256_set1_epi32(MAGNITUDE)) == 0
        }
    }
}
