//! When a slave answers: at once, or shortly before the next turn of the chunk.
//!
//! A position says its [lead](super::lead). If it has one, it calls for the delta of the chunk that
//! is so far behind it in the turn of its master, which may be of another range. It is itself taken
//! without an answer. What an answer does to a chunk is the same at any time: it takes the position
//! that is held once more ([`take`](super::take)).
//!
//! Invariant: each position that is taken is answered early once at most, so that nothing goes
//! again and again that is not known to be lost. If a chunk was not called for, or there was no
//! room for its answer, that waits for the next turn: at once it would be as late, and would keep
//! back what comes after it.
//!
//! Where a lead begins, all that is called for in that turn was answered at once in the one before.
//! It is answered a second time: without, a whole turn would go by in silence, and the master's
//! flow window lets next to nothing go then.

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING};
use super::lease::Turn;
use super::narrow::Narrow;
use super::take::{take, take_and_answer, take_and_answer_narrow, take_unanswered};
use super::{Outbox, To, header, lead};
use crate::weights::kernels;
use crate::wire::{self, Dtype, Header};

/// What was answered early of each chunk, by one slave.
#[cfg_attr(test, derive(Clone, Debug))]
pub(super) struct Early {
    /// Version of the position that was answered last, when another called for it.
    answered: Vec<Option<u32>>,
    /// The position of a chunk that is held.
    held: Vec<f32>,
}

impl Early {
    pub(super) fn new(chunks: u32) -> Self {
        Self {
            answered: vec![None; chunks as usize],
            held: Vec::new(),
        }
    }

    /// Takes position `pos`, f32, of a chunk that is joined, and answers it or what it calls for.
    #[inline]
    pub(super) fn take(
        &mut self,
        common: &mut Common<'_>,
        narrow: &mut Narrow,
        header: &Header,
        (pos, ack): (&[u8], u8),
        out: &mut impl Outbox,
    ) {
        let early = header.held > 0 && common.exactly_once() && !common.leaves();
        let turn = early.then(|| Turn::of_node(common, header.sender));
        let lead = turn
            .as_ref()
            .map_or(0, |turn| lead::chunks(header.held, turn.len()));
        let ahead = turn.and_then(|turn| turn.chunk_ahead(header.chunk, lead));
        let Some(ahead) = ahead.filter(|_| lead > 0) else {
            take(common, narrow, header, pos, ack, out);
            return;
        };
        take_unanswered(common, header, pos, ack);
        let flags = common.state.chunk(header.chunk).flags.load(Relaxed);
        if flags & OUTSTANDING == 0 {
            narrow.note_exact(header.chunk);
        }
        self.answer_ahead(common, narrow, header, (ahead, lead), out);
    }

    /// Answers the position that is held of `chunk`, which is `lead` behind that of `called`.
    fn answer_ahead(
        &mut self,
        common: &mut Common<'_>,
        narrow: &mut Narrow,
        called: &Header,
        (chunk, lead): (u32, u32),
        out: &mut impl Outbox,
    ) {
        let range = common.ranges.range_of(chunk);
        let state = common.state.chunk(chunk);
        let (flags, version) = (state.flags.load(Relaxed), state.version.load(Relaxed));
        let is_held = flags & JOINED != 0;
        let answered = self.answered[chunk as usize] == Some(version);
        let epoch = state.epoch.load(Relaxed);
        // It may be of another range than the position: what its master may not know yet waits.
        let by_replica = common.leases[usize::from(range)].by_replica;
        let admits = common.peers[usize::from(called.sender)].admits || !by_replica;
        if !is_held || answered || !admits || epoch != common.promised(range) {
            return;
        }
        let header = Header {
            range,
            epoch,
            chunk,
            chunk_version: version,
            content: lead as u16,
            ..*called
        };
        let sent = common.counters.deltas_sent;
        if flags & OUTSTANDING != 0 {
            self.repeat(common, narrow, &header, out);
        } else {
            let (_, last, _) = common.chunk_views(chunk);
            self.held.resize(last.len(), 0.0);
            kernels::copy_out(last, &mut self.held);
            let held = self.held.as_bytes();
            let taken = match common.config.precision {
                Dtype::F32 => take_and_answer(common, &header, held, out),
                _ => take_and_answer_narrow(common, narrow, &header, held, out),
            };
            common.counters.healed_weights += u64::from(taken.non_finite);
        }
        if common.counters.deltas_sent > sent {
            self.answered[chunk as usize] = Some(version);
        }
    }

    /// Sends the delta again that is outstanding. Nothing changes here.
    fn repeat(
        &mut self,
        common: &mut Common<'_>,
        narrow: &mut Narrow,
        header: &Header,
        out: &mut impl Outbox,
    ) {
        let (_, _, sent) = common.chunk_views(header.chunk);
        let seq = common.state.chunk(header.chunk).seq.load(Relaxed);
        let scale = common.scale(header.chunk);
        let (dtype, goes) = match common.config.precision {
            Dtype::F32 => {
                self.held.resize(sent.len(), 0.0);
                kernels::copy_out(sent, &mut self.held);
                self.held.iter_mut().for_each(|value| *value *= scale);
                (Dtype::F32, &self.held[..])
            }
            precision => {
                let portion = narrow.portion_of(header.chunk).unwrap_or(scale);
                narrow.repeat(precision, sent, portion)
            }
        };
        let delta = header::delta(common, header, seq, dtype);
        let went = common.shares.may_answer()
            && out.send(To::Node(header.sender), delta.frame_len(), &mut |slot| {
                wire::pack(dtype, goes, delta.emit(slot).1);
            });
        if went {
            common.counters.deltas_sent += 1;
            common.counters.deltas_repeated += 1;
            common.shares.answer_sent();
        } else {
            common.counters.deltas_kept += 1;
        }
    }
}
