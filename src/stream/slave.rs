//! The slave: which positions it takes, and in what state of their chunk.
//!
//! Holds when each chunk was taken and how old it was then; the numbers of a chunk are in the state
//! file. What happens to the weights is in [`take`](super::take). Invariant: of one epoch a chunk
//! only ever goes to later versions.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use hdrhistogram::Histogram;
use zerocopy::IntoBytes;

use super::age::AgeSteps;
use super::common::chunk_flags::{GIVEN, JOINED, OUTSTANDING};
use super::common::{Common, note_taken};
use super::narrow::Narrow;
use super::take::take;
use super::{Config, Outbox};
use crate::weights::{ChunkState, kernels};
use crate::wire::{DropReason, Dtype, Frame, Header};

/// What a slave knows beyond the state file.
pub(super) struct Slave {
    narrow: Narrow,
    /// When each foreign chunk was taken, ns; 0: never.
    taken_ns: Vec<u64>,
    ages_us: Histogram<u64>,
    age_steps: AgeSteps,
    /// A position in a narrower payload, made f32.
    values: Vec<f32>,
}

/// True if `version` comes after `than`, modulo 2^32.
fn newer(version: u32, than: u32) -> bool {
    (version.wrapping_sub(than) as i32) > 0
}

impl Slave {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            narrow: Narrow::new(config),
            taken_ns: vec![0; config.chunks as usize],
            // 1 µs to 1 h, two significant digits.
            ages_us: Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("bounds are constant"),
            age_steps: AgeSteps::new(config.chunks, config.nodes),
            values: Vec::new(),
        }
    }

    /// How old foreign chunks were, µs, when their next position was taken.
    pub(super) fn ages_us(&self) -> &Histogram<u64> {
        &self.ages_us
    }

    /// The same in steps.
    pub(super) fn age_steps(&self) -> &AgeSteps {
        &self.age_steps
    }

    /// Time since the oldest of `chunks` was taken, ns; since the start where one never was.
    pub(super) fn age_ns(&self, chunks: Range<u32>, now_ns: u64) -> u64 {
        let taken = &self.taken_ns[chunks.start as usize..chunks.end as usize];
        let oldest = taken.iter().min();
        oldest.map_or(0, |taken| now_ns.saturating_sub(*taken))
    }

    /// Forgets what narrow payloads have brought of a chunk: `last` is something else now.
    pub(super) fn forget(&mut self, chunk: u32) {
        self.narrow.forget(chunk);
    }

    /// Takes a position, or says why not. True: its master has begun a new epoch with it.
    pub(super) fn handle_position(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<bool, DropReason> {
        let header = &frame.header;
        if !common.ranges.owns(header.sender, header.chunk) || header.range != header.sender {
            return Err(DropReason::Foreign);
        }
        let ack = *frame
            .acks
            .get(common.config.node as usize)
            .ok_or(DropReason::Shape)?;
        let state = common.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        if header.epoch == 0 || (joined && !epoch_fits(state, header.epoch)) {
            return Err(DropReason::Epoch);
        }
        let version = state.version.load(Relaxed);
        if joined && !newer(header.chunk_version, version) {
            return Err(DropReason::Late);
        }
        if header.dtype == Dtype::F32 && header.part == 0 {
            if kernels::any_non_finite(frame.payload) {
                return Err(DropReason::NonFinite);
            }
            self.narrow.forget(header.chunk);
            return Ok(self.take_position(now_ns, common, frame, frame.payload, ack, out));
        }
        let mut values = std::mem::take(&mut self.values);
        let position = self.narrow.read_position(common, frame, &mut values);
        let taken = position
            .map(|()| self.take_position(now_ns, common, frame, values.as_bytes(), ack, out));
        self.values = values;
        taken
    }

    /// Takes a position that was found good: `pos`, f32. True: it is of a new epoch.
    #[inline(always)]
    fn take_position(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        pos: &[u8],
        ack: u8,
        out: &mut impl Outbox,
    ) -> bool {
        let header = &frame.header;
        let state = common.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        let version = state.version.load(Relaxed);
        let peer = &mut common.peers[header.sender as usize];
        peer.epoch = header.epoch;
        peer.streamed_ns = now_ns.max(1);
        let new_epoch = joined && state.epoch.load(Relaxed) != header.epoch as u16;
        if new_epoch {
            rejoin(common, header.chunk, header.epoch);
            take(common, &mut self.narrow, header, pos, ack, out);
        } else if joined {
            let skipped = header.chunk_version.wrapping_sub(version).wrapping_sub(1);
            common.counters.positions_missed += u64::from(skipped);
            self.note_age(header.chunk, now_ns);
            self.age_steps.note_taken(header.chunk, common);
            take(common, &mut self.narrow, header, pos, ack, out);
        } else {
            self.join(common, header, pos, ack);
        }
        self.taken_ns[header.chunk as usize] = now_ns.max(1);
        common.counters.positions_taken += 1;
        new_epoch
    }

    #[inline]
    fn note_age(&mut self, chunk: u32, now_ns: u64) {
        let before = self.taken_ns[chunk as usize];
        if before != 0 {
            self.ages_us
                .saturating_record(now_ns.saturating_sub(before) / 1000);
        }
    }

    /// The first position of a chunk: adopted as it is, and the master's count of our deltas with
    /// it.
    fn join(&mut self, common: &mut Common<'_>, header: &Header, pos: &[u8], ack: u8) {
        let (w, last, sent) = common.chunk_views(header.chunk);
        kernels::adopt(w, last, sent, pos);
        let state = common.state.chunk(header.chunk);
        state.epoch.store(header.epoch as u16, Relaxed);
        // Its count of our deltas, not 0: a predecessor of ours may have sent some, and a master
        // takes only the number that follows.
        note_taken(state, header.chunk_version, Some(ack), false);
        self.narrow.note_exact(header.chunk);
        common.peers[header.sender as usize].joined_chunks += 1;
    }
}

/// True if a position of `epoch` may be taken: not of an earlier epoch than the chunk is in,
/// and, if the chunk was given back for a new epoch, not of the one before.
#[inline]
fn epoch_fits(state: &ChunkState, epoch: u32) -> bool {
    // A chunk keeps the low 16 bits of its epoch; 32,768 losses of a range lie between doubts.
    let ahead = (epoch as u16).wrapping_sub(state.epoch.load(Relaxed)) as i16;
    let given = state.flags.load(Relaxed) & GIVEN != 0;
    ahead > 0 || (ahead == 0 && !given)
}

/// The chunk's master starts again and counts deltas anew: what we had under way is put back
/// into `w - last`, and goes out under the new count.
fn rejoin(common: &Common<'_>, chunk: u32, epoch: u32) {
    let state = common.state.chunk(chunk);
    if state.flags.load(Relaxed) & OUTSTANDING != 0 {
        let (_, last, sent) = common.chunk_views(chunk);
        // `sent` is in `w` and in `last` since it went. With `last` less by it, `w - last` is all
        // that this node ever added and the master may lack. If the old life had applied it and the
        // restored weights hold it, it counts twice: no number tells, and losing it is worse.
        for i in 0..last.len() {
            last.store(i, last.load(i) - sent.load(i));
        }
    }
    state.flags.store(JOINED, Relaxed);
    state.seq.store(0, Relaxed);
    state.epoch.store(epoch as u16, Relaxed);
}
