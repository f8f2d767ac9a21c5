//! Losses in bursts: a line that is good or bad for many frames on end.
//!
//! Touches nothing. Invariant: it has a generator of its own, seeded from the one seed, and draws
//! for every frame that arrives, so that no other setting changes its decisions, nor it theirs.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Keeps its generator apart from those of the wrapper and of corruption.
const STREAM: u64 = 0xB0B5_7ED0;

/// What makes losses come in bursts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Bursts {
    /// Losses are independent of each other.
    #[default]
    None,
    /// The line is good or bad, and turns with every frame that arrives (Gilbert 1960, Elliott
    /// 1963; parameters as in tc-netem: `loss gemodel p r 1-h 1-k`). It starts good.
    ///
    /// Share of time spent bad: `p / (p + r)`; mean length of a bad spell: `1 / r` frames.
    GilbertElliott {
        /// Probability that a good line turns bad, for each frame, 0 to 1.
        p: f64,
        /// Probability that a bad line turns good, for each frame, 0 to 1.
        r: f64,
        /// Probability that a frame is lost while the line is bad, 0 to 1 (usually 1).
        loss_bad: f64,
        /// Probability that a frame is lost while the line is good, 0 to 1 (usually 0).
        loss_good: f64,
    },
}

impl Bursts {
    /// The share of frames that are lost in the long run.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        match *self {
            Bursts::None => 0.0,
            // It never leaves the good state that it starts in.
            Bursts::GilbertElliott { p, loss_good, .. } if p <= 0.0 => loss_good,
            Bursts::GilbertElliott {
                p,
                r,
                loss_bad,
                loss_good,
            } => (p * loss_bad + r * loss_good) / (p + r),
        }
    }
}

/// The state of a Gilbert-Elliott line.
#[derive(Debug)]
pub struct BurstLoss {
    bursts: Bursts,
    bad: bool,
    rng: Xoshiro256PlusPlus,
}

impl BurstLoss {
    /// A line that is good, with chance from `seed`.
    pub fn new(bursts: Bursts, seed: u64) -> Self {
        BurstLoss {
            bursts,
            bad: false,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ STREAM),
        }
    }

    /// One frame arrives: the line may turn, then it loses the frame or does not.
    pub fn loses(&mut self) -> bool {
        let Bursts::GilbertElliott {
            p,
            r,
            loss_bad,
            loss_good,
        } = self.bursts
        else {
            return false;
        };
        let (turn, loss): (f64, f64) = (self.rng.random(), self.rng.random());
        if turn < if self.bad { r } else { p } {
            self.bad = !self.bad;
        }
        loss < if self.bad { loss_bad } else { loss_good }
    }
}
