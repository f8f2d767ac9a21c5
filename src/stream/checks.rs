//! Checks: a master sends a position a second time, unchanged, and slaves compare what they hold.
//!
//! *The master's half*: some chunks at a time, a *block*. Their positions are copied as they go.
//! One pass later, right before the next position of each, the copy goes as a check. So what may
//! have happened to a slave's memory in all that time is seen. Where payloads are narrow a block
//! stays for as many passes as a content has parts, so that each of them is checked.
//!
//! *The slave's half*: who holds that very version compares, weight by weight. A sum would not do:
//! `last` is the position plus what is outstanding, rounded, and the position cannot be had back
//! from it. With the position itself the sum is made again, and must have the same bits. What
//! differs is set right, so that this node's own work stays what it was.
//!
//! Invariants: a check moves no number and no promise. It changes only weights that differ from
//! what its master sent, and makes no own work larger than it is. It is not journalled: a kill
//! between two of its stores leaves one weight as wrong as it was.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING};
use super::lease::Turn;
use super::{Config, FillLent, Outbox, Report, To, epochs, header};
use crate::weights::WeightsView;
use crate::wire::{self, DropReason, Dtype, Frame, Header};

/// All chunks of a node are checked in so many blocks at least, or one by one if they are fewer.
const BLOCKS: usize = 128;
/// The shortest time in which all chunks are checked, ns. Unit tests live for less.
const ROUND_NS: u64 = if cfg!(test) {
    20_000_000
} else {
    10_000_000_000
};
/// No chunk.
const NONE: u32 = u32::MAX;

/// A position that went, to go again.
#[derive(Clone, Debug)]
struct Went {
    header: Header,
    payload: Vec<u8>,
}

/// The master's half: which chunks are checked, and what went of them.
#[derive(Clone, Debug)]
pub(super) struct Checks {
    /// The chunk of the block whose turn comes next in this pass.
    at: u32,
    /// Where the block begins; between two blocks, where the next one does.
    first: u32,
    /// What went of each chunk of the block. Empty between two blocks.
    block: Vec<Option<Went>>,
    /// Which of the block is `at`.
    which: usize,
    /// Passes over the block until this one.
    pass: u8,
    /// When the next block begins, ns; 0: not known yet.
    due_ns: u64,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            at: NONE,
            first: 0,
            block: Vec::new(),
            which: 0,
            pass: 0,
            due_ns: 0,
        }
    }
}

impl Checks {
    /// The chunk at whose turn there is something to do here.
    #[inline(always)]
    pub(super) fn at(&self) -> u32 {
        self.at
    }

    /// The same for other turns: no block is under way, the next begins where it would have.
    pub(super) fn begin_turns(self) -> Self {
        Self {
            first: self.first,
            due_ns: self.due_ns,
            ..Self::default()
        }
    }

    /// A pass over all chunks of `turn` begins.
    pub(super) fn begin_pass(&mut self, now_ns: u64, config: &Config, turn: &Turn) {
        if config.deltas != super::Deltas::ExactlyOnce {
            // Nothing is kept of what is sent: it is not known there what `last` is made of.
            return;
        }
        if self.block.is_empty() {
            let chunks = (turn.len() / BLOCKS).max(1);
            let every_ns = ROUND_NS / turn.len().div_ceil(chunks) as u64;
            if self.due_ns == 0 {
                // Not in the first pass of a streamer: the one before may have sent the same
                // versions, if it was killed between a frame and its number.
                self.due_ns = now_ns + every_ns;
            }
            if now_ns < self.due_ns {
                return;
            }
            self.due_ns = now_ns + every_ns;
            self.block.resize_with(chunks, || None);
            self.pass = 0;
        } else {
            self.pass += 1;
        }
        self.which = 0;
        self.at = turn.at(self.first);
    }

    /// Sends what went of the chunk in the last pass once more. Returns where its next position is
    /// to go through; `None`: there was no room. `has_read`: whether the adapter has read the last
    /// one, which must not be forgotten for a copy.
    pub(super) fn begin<'o, O: Outbox>(
        &mut self,
        common: &mut Common<'_>,
        has_read: bool,
        out: &'o mut O,
    ) -> Option<Copying<'o, O>> {
        if let Some(copy) = &self.block[self.which] {
            let was = &copy.header;
            let newest = common.state.chunk(was.chunk).version.load(Relaxed);
            if was.epoch == common.streamed(was.range) && was.chunk_version == newest {
                let header = header::check(common, was);
                let went = out.send(To::Group, header.frame_len(), &mut |slot| {
                    header.emit(slot).1.copy_from_slice(&copy.payload);
                });
                if !went {
                    return None;
                }
                common.counters.checks_sent += 1;
            }
            self.block[self.which] = None;
        }
        Some(Copying {
            out,
            copies: has_read && self.pass < parts(&common.config),
            frame: Vec::new(),
        })
    }

    /// The position of the chunk went, as `frame` where that is to go again.
    pub(super) fn note_went(&mut self, config: &Config, turn: &Turn, frame: &[u8]) {
        self.block[self.which] = Frame::parse(frame)
            .ok()
            .filter(|frame| tells_all(&frame.header))
            .map(|frame| Went {
                header: frame.header,
                payload: frame.payload.to_vec(),
            });
        let next = turn.at(self.at + 1);
        self.which += 1;
        if next <= self.at {
            self.block.truncate(self.which);
        }
        if self.which < self.block.len() {
            self.at = next;
            return;
        }
        self.at = NONE;
        if self.pass == parts(config) {
            self.first = next;
            self.block.clear();
        }
    }
}

/// Passes in which all parts of a content go: the whole chunk and its pieces.
fn parts(config: &Config) -> u8 {
    match config.precision {
        Dtype::F32 => 1,
        narrow => 1 + narrow.f32_pieces(),
    }
}

/// Whether all who took a position hold the same of it. A narrow one of a content that went before
/// adds nothing where that is known, and all of it elsewhere.
fn tells_all(header: &Header) -> bool {
    let first = header.content == header.chunk_version as u16;
    header.dtype == Dtype::F32 || header.part > 0 || first
}

/// An outbox that may keep a copy of the frame that goes through it.
pub(super) struct Copying<'o, O> {
    out: &'o mut O,
    copies: bool,
    pub(super) frame: Vec<u8>,
}

impl<O: Outbox> Outbox for Copying<'_, O> {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let (copies, frame) = (self.copies, &mut self.frame);
        self.out.send(to, len, &mut |slot| {
            fill(slot);
            if copies {
                frame.extend_from_slice(slot);
            }
        })
    }

    fn send_weights(
        &mut self,
        to: To,
        head_len: usize,
        weights: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        if !self.copies {
            return self.out.send_weights(to, head_len, weights, fill);
        }
        let went = self.send(to, head_len + 4 * weights.len(), &mut |slot| {
            let (head, tail) = slot.split_at_mut(head_len);
            fill(head, Some(tail));
        });
        went.then_some(0)
    }
}

/// Compares what is held of a chunk with what its master sent, and sets right what differs.
#[cold]
#[inline(never)]
pub(super) fn handle(common: &mut Common<'_>, frame: &Frame<'_>) -> Result<(), DropReason> {
    let header = &frame.header;
    let (range, chunk) = (header.range, header.chunk);
    if range >= common.config.places()
        || !common.ranges.has(range, chunk)
        || epochs::owner(header.epoch) != header.sender
    {
        return Err(DropReason::Foreign);
    }
    if header.epoch != common.promised(range) {
        return Err(DropReason::Epoch);
    }
    let state = common.state.chunk(chunk);
    let held = (state.epoch.load(Relaxed), state.version.load(Relaxed));
    let flags = state.flags.load(Relaxed);
    let same = flags & JOINED != 0 && held == (header.epoch, header.chunk_version);
    let exact = common.inexact.get(&chunk) != Some(&held);
    if !same || !exact || !common.exactly_once() {
        return Err(DropReason::Late);
    }
    let part = match header.part {
        0 => 0..common.config.chunk_weights as usize,
        piece => common.config.piece(piece - 1),
    };
    let mut position = vec![0.0; part.len()];
    if !wire::unpack(header.dtype, frame.payload, &mut position) {
        return Err(DropReason::NonFinite);
    }
    common.counters.chunks_checked += 1;
    let (w, last, sent) = common.chunk_views(chunk);
    let outstanding = flags & OUTSTANDING != 0;
    let mut first = None;
    let mut weights = 0;
    for (i, pos) in part.zip(position) {
        if fits(pos, last.load(i), sent.load(i), outstanding) {
            continue;
        }
        set_right(i, pos, (w, last, sent), outstanding);
        first.get_or_insert(i);
        weights += 1;
    }
    if let Some(first) = first {
        common.counters.differing_chunks += 1;
        let chunk_weights = common.config.chunk_weights;
        common.report(Report::Differs {
            node: header.sender,
            first_weight: u64::from(chunk) * u64::from(chunk_weights) + first as u64,
            weights,
            chunk_weights,
        });
    }
    Ok(())
}

/// Whether a weight's `last` is made of position `pos` and what is outstanding. What was put back
/// has left its rounding there.
fn fits(pos: f32, last: f32, sent: f32, outstanding: bool) -> bool {
    let ahead = pos + sent;
    if outstanding {
        last == ahead
    } else {
        last == pos || last == ahead - sent
    }
}

/// Sets right what is held of weight `i`, whose position is `pos`.
///
/// What differs may be `last` alone (its memory or file is damaged), `last` and `w` by as much
/// (what was taken is not what was sent), or `sent`. Which it is shows in what would be this
/// node's own work: damage makes it larger, so of two ways the one with less of it is taken.
fn set_right(
    i: usize,
    pos: f32,
    (w, last, sent): (WeightsView<'_>, WeightsView<'_>, WeightsView<'_>),
    outstanding: bool,
) {
    let mut under_way = 0.0;
    if outstanding {
        let (says, must) = (sent.load(i), last.load(i) - pos);
        if must.is_finite() && is_less(must, says) {
            sent.store(i, must);
            return;
        }
        if !says.is_finite() {
            sent.store(i, 0.0);
        }
        under_way = sent.load(i);
    }
    let wanted = pos + under_way;
    let before = last.load(i);
    let set = |bits: u32| {
        let now = f32::from_bits(bits);
        let (alone, both) = (now - wanted, now - before);
        let moves = both.is_finite() && is_less(both, alone);
        moves.then(|| (wanted + both + 0.0).to_bits())
    };
    // Solvers add to it meanwhile. Where it needs no change that is no failure.
    let _ = w.word(i).fetch_update(Relaxed, Relaxed, set);
    last.store(i, wanted);
}

/// Whether `a` is smaller than `b`; anything is smaller than NaN.
fn is_less(a: f32, b: f32) -> bool {
    b.is_nan() || a.abs() < b.abs()
}
