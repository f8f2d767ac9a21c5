//! CLNH: a keyed hash that is a sum of carry-less products, chosen once at run time by what the
//! processor has.
//!
//! Touches nothing but its arguments. [`portable`] defines it, a property test holds the others
//! equal to it; all take the same time for all bytes and keys of one length. ARM's PMULL has no
//! kernel here yet: such processors run the portable one.

#[cfg(target_arch = "x86_64")]
mod x86;

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
