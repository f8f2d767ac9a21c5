//! The `fault` wrapper: loses (one by one and in bursts), corrupts, repeats, swaps and delays
//! frames, from a seed.
//!
//! It sits on the receiving half, so that each receiver of a group frame loses or gets it on its
//! own, as on a real network. Touches the frames of the link it wraps and, if frames are held back,
//! the clock.
//!
//! Invariants:
//! - The n-th frame to arrive draws the same numbers whatever the settings are. So two runs with
//!   one seed decide alike, and raising `drop` drops all that a lower `drop` did. Bursts and
//!   corruption draw from generators of their own.
//! - A frame that passes whole is not copied. A frame to corrupt is copied into one scratch buffer;
//!   the sender's bytes are never written to. A frame held back is copied into a slot that is used
//!   again. The number of slots is bounded, and what finds none is counted as `overflow` and lost.
//! - Every frame that arrives and every copy made is accounted for:
//!   `arrived + duplicated = lent + dropped + overflow + held now`.

mod bursts;
mod corrupt;
mod delay;

use std::io;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use self::bursts::{BurstLoss, Bursts};
use self::corrupt::Corrupter;
use self::delay::Held;
use crate::{Link, Receive, ReceiveStats, Source};

/// How long a swapped frame waits at most for the frames that shall overtake it: on a quiet line
/// they may never come.
const REORDER_WAIT_MAX: Duration = Duration::from_millis(10);

/// No frame is delayed for longer than this.
const DELAY_MAX: Duration = Duration::from_secs(3600);

/// What goes wrong, and how often. The default does nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultConfig {
    /// Seed of all decisions.
    pub seed: u64,
    /// Probability that a frame is lost, 0 to 1.
    pub drop: f64,
    /// Losses that come in bursts, in addition to `drop`.
    pub bursts: Bursts,
    /// Probability that a frame that was not lost arrives with flipped bits, 0 to 1.
    pub corrupt: f64,
    /// A corrupted frame has 1 to this many bits flipped.
    pub corrupt_bits_max: u32,
    /// Probability that a frame that was not lost comes twice, 0 to 1.
    pub duplicate: f64,
    /// Probability that a frame is overtaken by later ones, 0 to 1.
    pub reorder: f64,
    /// A swapped frame is overtaken by 1 to this many frames (fewer if the line is quiet for 10
    /// ms).
    pub reorder_span_frames: u32,
    /// Every frame is delayed by a time drawn evenly from this range; `a..a` delays all by `a`. An
    /// hour at most.
    pub delay: Range<Duration>,
    /// Frames held back at the same time, at most. Each takes up to one MTU of memory once used.
    pub held_frames_max: usize,
}

impl Default for FaultConfig {
    fn default() -> Self {
        FaultConfig {
            seed: 0,
            drop: 0.0,
            bursts: Bursts::None,
            corrupt: 0.0,
            corrupt_bits_max: 3,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_span_frames: 8,
            delay: Duration::ZERO..Duration::ZERO,
            held_frames_max: 8192,
        }
    }
}

impl FaultConfig {
    /// Whether the wrapper would leave every frame alone.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        let never = |share: f64| share <= 0.0;
        never(self.drop)
            && never(self.bursts.mean_loss())
            && never(self.corrupt)
            && never(self.duplicate)
            && never(self.reorder)
            && !self.delays()
    }

    fn delays(&self) -> bool {
        self.delay.start.max(self.delay.end) > Duration::ZERO
    }
}

/// What a wrapper did to the frames on their way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames that came from the link below.
    pub arrived: u64,
    /// Frames lost on purpose, in bursts or not.
    pub dropped: u64,
    /// Those of them that were lost in bursts.
    pub dropped_in_bursts: u64,
    /// Frames lent with flipped bits.
    pub corrupted: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Frames held back until others had overtaken them.
    pub reordered: u64,
    /// Frames held back for a time.
    pub delayed: u64,
    /// Frames lost because too many were held back already.
    pub overflow: u64,
    /// Frames held back at this moment.
    pub held: u64,
}

/// Wraps the receiving half of a link; the sending half stays as it is.
#[must_use]
pub fn wrap(link: Link, config: &FaultConfig) -> Link {
    let rx = Box::new(Faulty {
        inner: link.rx,
        line: Line {
            config: config.clone(),
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            bursts: BurstLoss::new(config.bursts, config.seed),
            corrupter: Corrupter::new(config.corrupt, config.corrupt_bits_max, config.seed),
            scratch: Vec::new(),
            held: Held::new(config.held_frames_max),
            stats: FaultStats::default(),
        },
        frames: 0,
        bytes: 0,
    });
    Link { tx: link.tx, rx }
}

struct Faulty {
    inner: Box<dyn Receive>,
    line: Line,
    frames: u64,
    bytes: u64,
}

/// The bad line: decides what happens to each frame, and keeps those that are late.
struct Line {
    config: FaultConfig,
    rng: Xoshiro256PlusPlus,
    bursts: BurstLoss,
    corrupter: Corrupter,
    /// The corrupted frame.
    scratch: Vec<u8>,
    held: Held,
    stats: FaultStats,
}

/// The numbers drawn for one copy of a frame.
struct Draw {
    reorder: f64,
    span: f64,
    delay: f64,
}

impl Draw {
    fn new(rng: &mut impl Rng) -> Self {
        Draw {
            reorder: rng.random(),
            span: rng.random(),
            delay: rng.random(),
        }
    }
}

impl Line {
    /// One frame arrives: lends, holds or loses it and its copy. `room` is the number of frames
    /// that may still be lent.
    fn arrive(
        &mut self,
        source: Source,
        frame: &[u8],
        room: &mut usize,
        lend: &mut dyn FnMut(Source, &[u8]),
    ) {
        self.stats.arrived += 1;
        // All numbers are drawn for every frame, used or not: see the invariants.
        let (drop, duplicate): (f64, f64) = (self.rng.random(), self.rng.random());
        let draws = [Draw::new(&mut self.rng), Draw::new(&mut self.rng)];
        let in_burst = self.bursts.loses();
        let flips = self.corrupter.decide();
        if drop < self.config.drop || in_burst {
            self.stats.dropped += 1;
            self.stats.dropped_in_bursts += u64::from(in_burst);
            return;
        }
        let mut scratch = mem::take(&mut self.scratch);
        let damaged = flips.is_some_and(|flips| self.corrupter.damage(frame, flips, &mut scratch));
        self.stats.corrupted += u64::from(damaged);
        let frame = if damaged { &scratch[..] } else { frame };
        let mut copies = 1;
        if duplicate < self.config.duplicate {
            self.stats.duplicated += 1;
            copies = 2;
        }
        for draw in &draws[..copies] {
            self.carry(source, frame, draw, room, lend);
        }
        self.scratch = scratch;
    }

    /// Lends or holds one copy.
    fn carry(
        &mut self,
        source: Source,
        frame: &[u8],
        draw: &Draw,
        room: &mut usize,
        lend: &mut dyn FnMut(Source, &[u8]),
    ) {
        let reorder = draw.reorder < self.config.reorder;
        let delay = self.config.delays();
        if !reorder && !delay && *room > 0 {
            *room -= 1;
            lend(source, frame);
            return;
        }
        let mut wait = Duration::ZERO;
        let mut overtaken_at = 0;
        if delay {
            let Range { start, end } = self.config.delay;
            wait = start.saturating_add(end.saturating_sub(start).mul_f64(draw.delay));
            self.stats.delayed += 1;
        }
        if reorder {
            // With a delay, only time may release the frame: it is overtaken by waiting longer.
            wait = wait.saturating_add(REORDER_WAIT_MAX);
            if !delay {
                let span = f64::from(self.config.reorder_span_frames.max(1));
                overtaken_at = self.stats.arrived + 1 + (draw.span * span) as u64;
            }
            self.stats.reordered += 1;
        }
        let due = Instant::now() + wait.min(DELAY_MAX);
        if !self.held.push(due, overtaken_at, source, frame) {
            self.stats.overflow += 1;
        }
    }

    /// Lends what has been held back long enough.
    fn release(&mut self, room: &mut usize, lend: &mut dyn FnMut(Source, &[u8])) {
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        while *room > 0
            && let Some((source, frame)) = self.held.pop(now, self.stats.arrived)
        {
            *room -= 1;
            lend(source, frame);
        }
    }
}

impl Receive for Faulty {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let Faulty {
            inner,
            line,
            frames,
            bytes,
        } = self;
        let mut room = max;
        let mut lend = |source: Source, frame: &[u8]| {
            *frames += 1;
            *bytes += frame.len() as u64;
            each(source, frame);
        };
        line.release(&mut room, &mut lend);
        if room > 0 {
            inner.recv(room, &mut |source, frame| {
                line.arrive(source, frame, &mut room, &mut lend);
            })?;
            line.release(&mut room, &mut lend);
        }
        Ok(max - room)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let Some(due) = self.line.held.next_due() else {
            return self.inner.wait(timeout);
        };
        let until_due = due.saturating_duration_since(Instant::now());
        if until_due.is_zero() || self.line.held.overtaken(self.line.stats.arrived) {
            return Ok(true);
        }
        let arrived = self.inner.wait(timeout.min(until_due))?;
        Ok(arrived || until_due <= timeout)
    }

    fn stats(&mut self) -> ReceiveStats {
        let below = self.inner.stats();
        ReceiveStats {
            frames: self.frames,
            bytes: self.bytes,
            fault: FaultStats {
                held: self.line.held.len() as u64,
                ..self.line.stats
            },
            ..below
        }
    }
}

#[cfg(test)]
mod tests;
