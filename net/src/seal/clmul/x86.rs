//! The hash with carry-less multiplication of x86-64.
//!
//! Reads its arguments only. The functions with `target_feature` are called by the safe ones above
//! them, which a [`super::Kernel`] names only if the processor has what they need.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Line;

pub(super) fn has_pclmul() -> bool {
    is_x86_feature_detected!("pclmulqdq")
}

pub(super) fn has_vpclmul() -> bool {
    has_pclmul()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vpclmulqdq")
}

#[inline]
pub(super) fn pclmul(key: &[Line], length: u64, bytes: &[u8]) -> u128 {
    // SAFETY: this kernel exists only on processors with PCLMULQDQ.
    unsafe { hash_pclmul(key, length, bytes) }
}

#[inline]
pub(super) fn vpclmul(key: &[Line], length: u64, bytes: &[u8]) -> u128 {
    // SAFETY: this kernel exists only on processors with PCLMULQDQ, VPCLMULQDQ, AVX-512F and AVX-512BW.
    unsafe { hash_vpclmul(key, length, bytes) }
}

/// The number of bytes x `length`.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn length_term(bytes: &[u8], length: u64) -> __m128i {
    _mm_clmulepi64_si128::<0>(word(bytes.len() as u64), word(length))
}

#[inline]
#[target_feature(enable = "sse2")]
fn word(word: u64) -> __m128i {
    _mm_set_epi64x(0, word.cast_signed())
}

#[inline]
#[target_feature(enable = "sse2")]
fn number(vector: __m128i) -> u128 {
    let low = _mm_cvtsi128_si64(vector).cast_unsigned();
    let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(vector, vector)).cast_unsigned();
    u128::from(low) | u128::from(high) << 64
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are there; `loadu` asks for no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The term of pair `at` of a line.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn term(line: &Line, at: usize, block: &[u8; 16]) -> __m128i {
    let key = _mm_set_epi64x(
        line.0[2 * at + 1].cast_signed(),
        line.0[2 * at].cast_signed(),
    );
    let mixed = _mm_xor_si128(load(block), key);
    _mm_clmulepi64_si128::<0x10>(mixed, mixed)
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn hash_pclmul(key: &[Line], length: u64, bytes: &[u8]) -> u128 {
    let (blocks, tail) = bytes.as_chunks::<64>();
    let mut sum = length_term(bytes, length);
    for (line, block) in key.iter().zip(blocks) {
        let (pairs, _) = block.as_chunks::<16>();
        for (at, pair) in pairs.iter().enumerate() {
            sum = _mm_xor_si128(sum, term(line, at, pair));
        }
    }
    if let Some(line) = key.get(blocks.len()) {
        for (at, bytes) in tail.chunks(16).enumerate() {
            let mut pair = [0; 16];
            pair[..bytes.len()].copy_from_slice(bytes);
            sum = _mm_xor_si128(sum, term(line, at, &pair));
        }
    }
    number(sum)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq")]
fn hash_vpclmul(key: &[Line], length: u64, bytes: &[u8]) -> u128 {
    let (blocks, tail) = bytes.as_chunks::<64>();
    let mut sum = _mm512_zextsi128_si512(length_term(bytes, length));
    for (line, block) in key.iter().zip(blocks) {
        // SAFETY: 64 bytes are there; a line is aligned to them, the message need not be.
        let (key, block) = unsafe {
            let block = _mm512_loadu_si512(block.as_ptr().cast());
            (_mm512_load_si512(line.0.as_ptr().cast()), block)
        };
        let mixed = _mm512_xor_si512(key, block);
        sum = _mm512_xor_si512(sum, _mm512_clmulepi64_epi128::<0x10>(mixed, mixed));
    }
    if let (false, Some(line)) = (tail.is_empty(), key.get(blocks.len())) {
        // Key words of pairs behind the message are left out, as they are where blocks are whole.
        let there = (1u64 << tail.len()) - 1;
        let pairs = ((1u32 << (2 * tail.len().div_ceil(16))) - 1) as u8;
        // SAFETY: only bytes whose bit is set are read, and those are in `tail`; a line is 64 bytes.
        let (key, block) = unsafe {
            let block = _mm512_maskz_loadu_epi8(there, tail.as_ptr().cast());
            let key = _mm512_maskz_load_epi64(pairs, line.0.as_ptr().cast());
            (key, block)
        };
        let mixed = _mm512_xor_si512(key, block);
        sum = _mm512_xor_si512(sum, _mm512_clmulepi64_epi128::<0x10>(mixed, mixed));
    }
    let halves = _mm256_xor_si256(
        _mm512_castsi512_si256(sum),
        _mm512_extracti64x4_epi64::<1>(sum),
    );
    number(_mm_xor_si128(
        _mm256_castsi256_si128(halves),
        _mm256_extracti128_si256::<1>(halves),
    ))
}
