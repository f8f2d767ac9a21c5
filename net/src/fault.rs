//! The `fault` wrapper: loses, repeats, swaps and delays frames, from a seed.
//!
//! It sits on the receiving half, so that every receiver of a group frame has its own fate, as on a
//! real network. Touches the frames of the link it wraps and, if frames are held back, the clock.
//!
//! Invariants:
//! - The n-th frame to arrive draws the same numbers whatever the settings are, so two runs with one
//!   seed decide alike, and raising `drop` drops all that a lower `drop` did.
//! - A frame that passes is not copied. A frame held back is copied into a slot that is used again;
//!   the number of slots is bounded, and what finds none is counted as `overflow` and lost.
//! - Every frame that arrives and every copy made is accounted for:
//!   `arrived + duplicated = lent + dropped + overflow + held now`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::{Link, Receive, ReceiveStats, Source};

/// How long a swapped frame waits at most for the frames that shall overtake it: on a quiet line
/// they may never come.
const REORDER_WAIT_MAX: Duration = Duration::from_millis(10);

/// No frame is delayed for longer than this.
const DELAY_MAX: Duration = Duration::from_secs(3600);

/// What goes wrong, and how often. The default does nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Seed of all decisions.
    pub seed: u64,
    /// Probability that a frame is lost, 0 to 1.
    pub drop: f64,
    /// Probability that a frame that was not lost comes twice, 0 to 1.
    pub duplicate: f64,
    /// Probability that a frame is overtaken by later ones, 0 to 1.
    pub reorder: f64,
    /// A swapped frame is overtaken by 1 to this many frames (fewer if the line is quiet for 10 ms).
    pub reorder_span_frames: u32,
    /// Every frame is delayed by a time drawn evenly from this range; `a..a` delays all by `a`. An
    /// hour at most.
    pub delay: Range<Duration>,
    /// Frames held back at the same time, at most. Each takes up to one MTU of memory once used.
    pub held_frames_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 0,
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_span_frames: 8,
            delay: Duration::ZERO..Duration::ZERO,
            held_frames_max: 8192,
        }
    }
}

impl Config {
    /// Whether the wrapper would leave every frame alone.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        self.drop <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0 && !self.delays()
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
    /// Frames lost on purpose.
    pub dropped: u64,
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
pub fn wrap(link: Link, config: &Config) -> Link {
    Link {
        tx: link.tx,
        rx: wrap_receive(link.rx, config),
    }
}

/// Wraps a receiving half alone.
#[must_use]
pub fn wrap_receive(inner: Box<dyn Receive>, config: &Config) -> Box<dyn Receive> {
    Box::new(Faulty {
        inner,
        line: Line {
            config: config.clone(),
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            held: Held::new(config.held_frames_max),
            stats: FaultStats::default(),
        },
        frames: 0,
        bytes: 0,
    })
}

struct Faulty {
    inner: Box<dyn Receive>,
    line: Line,
    frames: u64,
    bytes: u64,
}

/// The bad line: decides the fate of each frame and keeps those that are late.
struct Line {
    config: Config,
    rng: Xoshiro256PlusPlus,
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
    /// One frame arrives: lends, holds or loses it and its copy. `room` is how many may still be lent.
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
        if drop < self.config.drop {
            self.stats.dropped += 1;
            return;
        }
        let mut copies = 1;
        if duplicate < self.config.duplicate {
            self.stats.duplicated += 1;
            copies = 2;
        }
        for draw in &draws[..copies] {
            self.carry(source, frame, draw, room, lend);
        }
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

/// The frames held back, in slots that are used again.
///
/// Each is listed twice: by time, which always releases it in the end, and, if it waits to be
/// overtaken, by the count of arrivals that does. `generation` tells a stale entry of either list.
struct Held {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_time: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    by_count: BinaryHeap<Reverse<(u64, u64, usize)>>,
    generation: u64,
    slots_max: usize,
}

struct Slot {
    /// The generation of the frame in it; 0 when the slot is free.
    generation: u64,
    source: Source,
    frame: Vec<u8>,
}

impl Held {
    fn new(slots_max: usize) -> Self {
        Held {
            slots: Vec::new(),
            free: Vec::new(),
            by_time: BinaryHeap::new(),
            by_count: BinaryHeap::new(),
            generation: 0,
            slots_max,
        }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a frame in; false if there is no room. `overtaken_at` 0: by time alone.
    fn push(&mut self, due: Instant, overtaken_at: u64, source: Source, frame: &[u8]) -> bool {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.slots_max => {
                self.slots.push(Slot {
                    generation: 0,
                    source,
                    frame: Vec::new(),
                });
                self.slots.len() - 1
            }
            None => return false,
        };
        self.generation += 1;
        let slot = &mut self.slots[index];
        slot.generation = self.generation;
        slot.source = source;
        slot.frame.clear();
        slot.frame.extend_from_slice(frame);
        self.by_time.push(Reverse((due, self.generation, index)));
        if overtaken_at > 0 {
            self.by_count
                .push(Reverse((overtaken_at, self.generation, index)));
        }
        true
    }

    /// The next frame that is due, if any. Its slot is free again at once: the content stays until
    /// the next `push`, which the borrow holds off.
    fn pop(&mut self, now: Instant, arrived: u64) -> Option<(Source, &[u8])> {
        self.forget_stale();
        let index = match (self.by_count.peek(), self.by_time.peek()) {
            (Some(&Reverse((at, _, index))), _) if at <= arrived => index,
            (_, Some(&Reverse((due, _, index)))) if due <= now => index,
            _ => return None,
        };
        self.slots[index].generation = 0;
        self.free.push(index);
        let slot = &self.slots[index];
        Some((slot.source, &slot.frame))
    }

    fn next_due(&mut self) -> Option<Instant> {
        self.forget_stale();
        self.by_time.peek().map(|&Reverse((due, ..))| due)
    }

    /// Whether enough frames have passed for one that waits for that.
    fn overtaken(&self, arrived: u64) -> bool {
        self.by_count
            .peek()
            .is_some_and(|&Reverse((at, ..))| at <= arrived)
    }

    /// Drops the entries on top of the lists whose frame was released through the other list.
    fn forget_stale(&mut self) {
        while let Some(&Reverse((_, generation, index))) = self.by_time.peek()
            && self.slots[index].generation != generation
        {
            self.by_time.pop();
        }
        while let Some(&Reverse((_, generation, index))) = self.by_count.peek()
            && self.slots[index].generation != generation
        {
            self.by_count.pop();
        }
    }
}
