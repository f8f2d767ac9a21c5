//! The completion vector of a worker: which layers have come far enough (2015 paper, algorithm 2).
//!
//! Bits only: who sets them and what is far enough is known outside.

/// The completion vector: one bit per layer. The next iteration begins when all are set.
#[derive(Debug)]
pub struct Completion {
    bits: Vec<bool>,
}

impl Completion {
    /// A vector of `layers` bits, none of them set.
    pub fn new(layers: usize) -> Self {
        Self {
            bits: vec![false; layers],
        }
    }

    /// Sets or clears the bit of `layer`.
    pub fn set(&mut self, layer: usize, ready: bool) {
        self.bits[layer] = ready;
    }

    /// True if all bits are set.
    pub fn all(&self) -> bool {
        self.bits.iter().all(|bit| *bit)
    }

    /// Layers whose bit is not set.
    pub fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.bits.len()).filter(|&layer| !self.bits[layer])
    }
}
