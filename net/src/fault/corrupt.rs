//! Flipped bits.
//!
//! Touches nothing but the bytes it is given. Invariant: it has a generator of its own, seeded from
//! the one seed, and draws for every frame that arrives, so that no other setting changes its
//! decisions, nor it theirs.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Keeps its generator apart from those of the wrapper and of bursts.
const STREAM: u64 = 0xC022_0972;

/// Flips bits.
pub(super) struct Corrupter {
    share: f64,
    bits_max: u32,
    rng: Xoshiro256PlusPlus,
}

/// What is to be flipped in one frame: a seed.
#[derive(Clone, Copy)]
pub(super) struct Flips(u64);

impl Corrupter {
    pub(super) fn new(share: f64, bits_max: u32, seed: u64) -> Self {
        Corrupter {
            share,
            bits_max: bits_max.max(1),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ STREAM),
        }
    }

    /// One frame arrives: whether it is to be corrupted.
    pub(super) fn decide(&mut self) -> Option<Flips> {
        let (share, flips): (f64, u64) = (self.rng.random(), self.rng.random());
        (share < self.share).then_some(Flips(flips))
    }

    /// Copies `frame` into `damaged` and flips one bit or more there, all different; false if the
    /// frame is empty.
    pub(super) fn damage(&self, frame: &[u8], flips: Flips, damaged: &mut Vec<u8>) -> bool {
        if frame.is_empty() {
            return false;
        }
        damaged.clear();
        damaged.extend_from_slice(frame);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(flips.0);
        let bits = frame.len() * 8;
        let count = (rng.random_range(1..=self.bits_max) as usize).min(bits);
        let mut flipped = 0;
        while flipped < count {
            let bit = rng.random_range(0..bits);
            let (at, mask) = (bit / 8, 1 << (bit % 8));
            if (damaged[at] ^ frame[at]) & mask == 0 {
                damaged[at] ^= mask;
                flipped += 1;
            }
        }
        true
    }
}
