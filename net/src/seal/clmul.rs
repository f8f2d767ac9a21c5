//! CLNH: a keyed hash that is a sum of carry-less products, chosen once at run time by what the
//! processor has.
//!
//! Touches nothing but its arguments. [`portable`] defines it, a property test holds the others
//! equal to it; all take the same time for all bytes and keys of one length. ARM's PMULL has no
//! kernel here yet: such processors run the portable one.

use std::sync::OnceLock;

/// Key words for 64 bytes of a message: a cache line, and a vector of AVX-512.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u64; 8]);

/// What the hash runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Shifts and masks.
    Portable,
    /// One carry-less product at a time.
    #[cfg(target_arch = "x86_64")]
    Pclmul,
    /// Four at a time, with AVX-512.
    #[cfg(target_arch = "x86_64")]
    Vpclmul,
}

impl Kernel {
    /// All that this processor has, the portable one first, the best last.
    pub(super) fn available() -> Vec<Self> {
        let mut all = vec![Kernel::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_pclmul() {
                all.push(Kernel::Pclmul);
            }
            if x86::has_vpclmul() {
                all.push(Kernel::Vpclmul);
            }
        }
        all
    }

    /// The best that this processor has; found out once.
    pub(super) fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().unwrap_or(&Kernel::Portable))
    }

    /// The sum over all pairs of 64-bit words of `bytes`, the last filled up with zeros, of
    /// `(word ^ key word) x (next word ^ next key word)`, and of the number of bytes x `length`.
    ///
    /// # Panics
    /// If `bytes` are more than `key` has words for: a bug of the caller, which checks.
    #[inline]
    pub(super) fn hash(self, key: &[Line], length: u64, bytes: &[u8]) -> u128 {
        assert!(
            bytes.len() <= size_of_val(key),
            "a key as long as the frame"
        );
        match self {
            Kernel::Portable => portable(key, length, bytes),
            #[cfg(target_arch = "x86_64")]
            Kernel::Pclmul => x86::pclmul(key, length, bytes),
            #[cfg(target_arch = "x86_64")]
            Kernel::Vpclmul => x86::vpclmul(key, length, bytes),
        }
    }
}

/// The product of two polynomials over GF(2): bit i is the coefficient of x^i.
fn product(a: u64, b: u64) -> u128 {
    (0..64).fold(0, |sum, bit| {
        // A mask and no branch: which bits a key has must not show in the time.
        let mask = 0u128.wrapping_sub(u128::from(b >> bit & 1));
        sum ^ (u128::from(a) << bit & mask)
    })
}

fn portable(key: &[Line], length: u64, bytes: &[u8]) -> u128 {
    let pairs = key.iter().flat_map(|line| line.0.as_chunks::<2>().0);
    let mut sum = product(bytes.len() as u64, length);
    for ([k0, k1], chunk) in pairs.zip(bytes.chunks(16)) {
        let mut block = [0; 16];
        block[..chunk.len()].copy_from_slice(chunk);
        let block = u128::from_le_bytes(block);
        sum ^= product(block as u64 ^ k0, (block >> 64) as u64 ^ k1);
    }
    sum
}

/// The hash with carry-less multiplication of x86-64. The functions with `target_feature` are
/// called by the safe ones above them, which a [`Kernel`] names only if the processor has what they
/// need.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86 {
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
        // SAFETY: this kernel exists only on processors with PCLMULQDQ, VPCLMULQDQ, AVX-512F and
        // AVX-512BW.
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
            // Key words of pairs behind the message are left out, as they are where blocks are
            // whole.
            let there = (1u64 << tail.len()) - 1;
            let pairs = ((1u32 << (2 * tail.len().div_ceil(16))) - 1) as u8;
            // SAFETY: only bytes whose bit is set are read, and those are in `tail`; a line is 64
            // bytes.
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn random_key(lines: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<Line> {
        (0..lines)
            .map(|_| Line(std::array::from_fn(|_| rng.next_u64())))
            .collect()
    }

    #[test]
    fn products_are_those_of_polynomials() {
        // (x + 1)(x + 1) = x^2 + 1, and x^63 x^63 = x^126: nothing is carried.
        assert_eq!(product(3, 3), 5);
        assert_eq!(product(1 << 63, 1 << 63), 1 << 126);
        assert_eq!(product(0, u64::MAX), 0);
        let all = (0..64).fold(0, |sum, bit| sum ^ u128::from(u64::MAX) << bit);
        assert_eq!(product(u64::MAX, u64::MAX), all);
    }

    /// Each length up to more than a jumbo frame, beginning at each place of a cache line.
    #[test]
    fn kernels_agree_for_every_length() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let key = random_key(150, &mut rng);
        let mut bytes = vec![0; 150 * 64 + 64];
        rng.fill_bytes(&mut bytes);
        for len in 0..=9_400 {
            let at = len * 37 % 64;
            let message = &bytes[at..at + len];
            let wanted = portable(&key, 77, message);
            for kernel in Kernel::available() {
                let hash = kernel.hash(&key, 77, message);
                assert_eq!(hash, wanted, "{kernel:?}, {len} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn kernels_agree(seed: u64, at in 0usize..200, len in 0usize..3_000) {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            // No longer than it has to be: what is read beyond it is not ours.
            let key = random_key(len.div_ceil(64), &mut rng);
            let (length, mut bytes) = (rng.next_u64(), vec![0; at + len]);
            rng.fill_bytes(&mut bytes);
            let wanted = portable(&key, length, &bytes[at..]);
            for kernel in Kernel::available() {
                let hash = kernel.hash(&key, length, &bytes[at..]);
                prop_assert_eq!(hash, wanted, "{:?}", kernel);
            }
        }
    }
}
