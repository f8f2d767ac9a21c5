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
use super::common::chunk_flags::{FORKED, JOINED};
use super::common::{Common, note_taken};
use super::early::Early;
use super::narrow::Narrow;
use super::take::{agrees, note_acks, put_back, report_resync, take};
use super::{Config, Outbox, epochs};
use crate::weights::kernels;
use crate::wire::{DropReason, Dtype, Frame, Header};

/// What a slave knows beyond the state file.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Slave {
    narrow: Narrow,
    /// When each foreign chunk was taken, ns; 0: never.
    taken_ns: Vec<u64>,
    /// What came of it since, and was not newer.
    late: Vec<Late>,
    ages_us: Histogram<u64>,
    age_steps: AgeSteps,
    /// The ranges that this node streamed when it looked last, and how often they had changed.
    own: Vec<bool>,
    turns: Option<u32>,
    early: Early,
    /// A position in a narrower payload, made f32.
    values: Vec<f32>,
}

/// Positions of a chunk of which none is newer than the one that is held.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    frames: u32,
    since_ns: u64,
}

/// A chunk is stuck once positions came for so long, so many of them, and none was newer. Where a
/// master was silent for long, or this node stood still, one or two may come late all the same.
const STUCK_NS: u64 = 1_000_000_000;
const STUCK_FRAMES: u32 = 8;

/// True if `version` comes after `than`, modulo 2^32.
fn newer(version: u32, than: u32) -> bool {
    (version.wrapping_sub(than) as i32) > 0
}

impl Slave {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            narrow: Narrow::new(config),
            taken_ns: vec![0; config.chunks as usize],
            late: vec![Late::default(); config.chunks as usize],
            // 1 µs to 1 h, two significant digits.
            ages_us: Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("bounds are constant"),
            age_steps: AgeSteps::new(config.chunks, config.nodes),
            own: vec![false; config.places().into()],
            turns: None,
            early: Early::new(config.chunks),
            values: Vec::new(),
        }
    }

    /// Ranges that this node streamed until now are as new as can be when another begins them.
    #[inline]
    pub(super) fn look_at_turns(&mut self, now_ns: u64, common: &Common<'_>) {
        if self.turns != Some(common.turns) {
            self.turns = Some(common.turns);
            self.begin_turns(now_ns, common);
        }
    }

    #[cold]
    fn begin_turns(&mut self, now_ns: u64, common: &Common<'_>) {
        for range in 0..common.config.places() {
            let streams = common.streams(range);
            let streamed = std::mem::replace(&mut self.own[usize::from(range)], streams);
            if streamed && !streams {
                let chunks = common.ranges.of(range);
                self.age_steps.note_streamed(chunks.clone(), common);
                self.taken_ns[chunks.start as usize..chunks.end as usize].fill(now_ns.max(1));
            }
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

    /// Tells whether all nodes hold the same bits, and add nothing.
    #[inline]
    pub(super) fn set_at_rest(&mut self, at_rest: bool) {
        self.narrow.set_at_rest(at_rest);
    }

    /// Whether the very bits of a chunk have come, not only rounded ones.
    pub(super) fn has_bits(&self, chunk: u32) -> bool {
        self.narrow.has_bits(chunk)
    }

    /// Takes a position, or says why not.
    pub(super) fn handle_position(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let range = header.range;
        if range >= common.config.places()
            || !common.ranges.has(range, header.chunk)
            || epochs::owner(header.epoch) != header.sender
        {
            return Err(DropReason::Foreign);
        }
        let ack = *frame
            .acks
            .get(common.config.node as usize)
            .ok_or(DropReason::Shape)?;
        let state = common.state.chunk(header.chunk);
        if !common.epoch_fits(range, header.epoch) {
            return Err(DropReason::Epoch);
        }
        let mut flags = state.flags.load(Relaxed);
        let joined = flags & JOINED != 0;
        let same_epoch = state.epoch.load(Relaxed) == header.epoch;
        let version = state.version.load(Relaxed);
        if joined && same_epoch && !newer(header.chunk_version, version) {
            self.note_late(now_ns, common, header);
            return Err(DropReason::Late);
        }
        if flags & FORKED != 0 {
            if !common.hear_of_fork(header, ack) {
                // What it did apart from this master comes first.
                return Err(DropReason::NotReady);
            }
            flags = state.flags.load(Relaxed);
        }
        let joined = flags & JOINED != 0;
        let another = joined && epochs::owner(state.epoch.load(Relaxed)) != header.sender;
        if another && !common.may_go_over(header) {
            return Err(DropReason::NotReady);
        }
        let admits = common.peers[usize::from(header.sender)].admits;
        if (!joined || common.leases[usize::from(range)].by_replica) && !admits {
            // It answers our hello.
            common.tell_soon = true;
            return Err(DropReason::NotReady);
        }
        if header.dtype == Dtype::F32 && header.part == 0 {
            if kernels::any_non_finite(frame.payload) {
                return Err(DropReason::NonFinite);
            }
            self.narrow.forget(header.chunk);
            self.take_position(now_ns, common, frame, frame.payload, ack, out);
            return Ok(());
        }
        let mut values = std::mem::take(&mut self.values);
        let position = self.narrow.read_position(common, frame, &mut values);
        let taken = position
            .map(|()| self.take_position(now_ns, common, frame, values.as_bytes(), ack, out));
        self.values = values;
        if taken.is_ok() && self.narrow.is_rough(header.chunk) {
            common.note_inexact(header.chunk);
        }
        taken
    }

    /// Takes a position that was found good: `pos`, f32.
    #[inline(always)]
    fn take_position(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        pos: &[u8],
        ack: u8,
        out: &mut impl Outbox,
    ) {
        // An answer says there how far ahead of its turn it goes: to its own position, not at all.
        let header = &Header {
            content: 0,
            ..frame.header
        };
        let state = common.state.chunk(header.chunk);
        let joined = state.flags.load(Relaxed) & JOINED != 0;
        let version = state.version.load(Relaxed);
        let (sent, repeated) = (common.counters.deltas_sent, common.counters.deltas_repeated);
        common.peers[usize::from(header.sender)].streamed_ns = now_ns.max(1);
        if joined {
            // In a new epoch versions may have been left out.
            let epoch = state.epoch.load(Relaxed);
            if epoch == header.epoch {
                let skipped = header.chunk_version.wrapping_sub(version).wrapping_sub(1);
                common.counters.positions_missed += u64::from(skipped);
                common.exchanged[usize::from(header.sender)].positions_missed += u64::from(skipped);
            }
            self.note_age(header.chunk, now_ns);
            self.age_steps.note_taken(header.chunk, common);
            let age = self.age_steps.late(common.local_iterations());
            self.narrow.note_age(age);
            if !epochs::same_reign(epoch, header.epoch) {
                common.begin_with(now_ns, header, ack);
            }
            if common.exactly_once() && !agrees(common, header.chunk, ack) {
                let known = common.knows_apart(header);
                put_back(common, header, ack);
                if !known {
                    report_resync(common, header);
                }
                self.narrow.forget(header.chunk);
            }
            note_acks(common, frame);
            state.epoch.store(header.epoch, Relaxed);
            let (w, ..) = common.chunk_views(header.chunk);
            common.exchanged[usize::from(header.sender)].note_position(w, pos);
            self.early
                .take(common, &mut self.narrow, header, (pos, ack), out);
        } else {
            common.exchanged[usize::from(header.sender)].positions_taken += 1;
            self.join(common, header, pos, ack);
            note_acks(common, frame);
            if common.answers_first(now_ns, header.sender) {
                take(common, &mut self.narrow, header, pos, ack, out);
            }
        }
        self.taken_ns[header.chunk as usize] = now_ns.max(1);
        self.late[header.chunk as usize].frames = 0;
        common.counters.positions_taken += 1;
        let master = &mut common.exchanged[usize::from(header.sender)];
        master.deltas_sent += common.counters.deltas_sent - sent;
        master.deltas_repeated += common.counters.deltas_repeated - repeated;
    }

    /// A position came that is not newer than the one that is held. If none that is comes for long,
    /// it is the one that is held that is wrong: a forged frame may have brought it.
    #[cold]
    fn note_late(&mut self, now_ns: u64, common: &mut Common<'_>, header: &Header) {
        let late = &mut self.late[header.chunk as usize];
        if late.frames == 0 {
            late.since_ns = now_ns;
        }
        late.frames += 1;
        let long = now_ns.saturating_sub(common.awake_since(late.since_ns)) > STUCK_NS;
        if long && late.frames >= STUCK_FRAMES {
            late.frames = 0;
            common.ask_for_new_epoch(header.range);
            report_resync(common, header);
        }
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
        state.epoch.store(header.epoch, Relaxed);
        // Its count of our deltas, not 0: a predecessor of ours may have sent some, and a master
        // takes only the number that follows.
        note_taken(state, header.chunk_version, Some(ack), false);
        self.narrow.note_exact(header.chunk);
        common.leases[usize::from(header.range)].joined_chunks += 1;
    }
}

impl Common<'_> {
    /// Whether this node answers the first position of a chunk, though it has nothing to say: the
    /// window of its master goes by answers, and no slave that is ready gives any.
    #[cold]
    fn answers_first(&self, now_ns: u64, master: u16) -> bool {
        let answers = |node: u16| {
            node != master && self.peers[usize::from(node)].ready && self.is_alive(now_ns, node)
        };
        self.config.window_frames > 0 && !self.others().any(answers)
    }
}

#[cfg(test)]
impl Slave {
    /// What it keeps beyond the state file, where payloads are f32, but for statistics.
    pub(super) fn kept(&self, common: &Common<'_>) -> impl std::fmt::Debug {
        let late = (0..common.config.chunks).map(|chunk| {
            let streams = common.streams(common.ranges.range_of(chunk));
            let late = self.late[chunk as usize];
            (!streams && late.frames > 0).then_some(late)
        });
        let turns = self.turns.map(|turns| common.turns.wrapping_sub(turns));
        (late.collect::<Vec<_>>(), &self.own, turns)
    }

    /// Makes statistics small: tests keep many copies.
    pub(super) fn forget_statistics(&mut self) {
        let small = || Histogram::new_with_bounds(1, 2, 0).expect("bounds are constant");
        self.ages_us = small();
        (self.age_steps.local, self.age_steps.cluster) = (small(), small());
    }
}
