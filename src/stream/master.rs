//! The master: multicasts the positions of its range, adds the deltas that come back.

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::heal::{Healed, heal};
use super::streamer::chunk_flags::KEPT;
use super::{Outbox, Streamer, To};
use crate::weights::{ChunkState, JournalOp, kernels};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Kind, flags};

/// A delta that answers a position this many versions back is refused: its 8-bit sequence
/// number could be mistaken for a later one.
const MAX_DELTA_LAG: u32 = 128;

impl Streamer<'_> {
    /// True once the own range may be streamed (see `hello`).
    pub(super) fn streaming(&self) -> bool {
        self.state.epoch().load(Relaxed) != 0
    }

    pub(super) fn ready_flag(&self) -> u8 {
        if self.was_ready { flags::READY } else { 0 }
    }

    /// Positions that would go now if there were room for them: what the flow window says.
    pub(super) fn positions_wanted(&mut self, now_ns: u64) -> usize {
        if self.ranges.of(self.config.node).is_empty() || !self.streaming() {
            return 0;
        }
        self.window_left(now_ns)
    }

    /// Sends positions of the own range, round-robin, until `max` or the transport says stop.
    /// Returns how many.
    pub(super) fn poll_positions(
        &mut self,
        now_ns: u64,
        max: usize,
        out: &mut impl Outbox,
    ) -> usize {
        let ready = self.ready_flag();
        for sent in 0..max {
            if self.config.sparse {
                self.skip_resting(now_ns);
            }
            if !self.send_position(self.cursor, ready, out) {
                return sent;
            }
            self.shares.own_sent();
            let own = (self.cursor - self.ranges.of(self.config.node).start) as usize;
            self.sparse.note_went(own, self.sent_positions);
            self.window.note_sent(now_ns, self.sent_positions);
            self.next_turn(now_ns);
        }
        max
    }

    fn send_position(&mut self, chunk: u32, ready: u8, out: &mut impl Outbox) -> bool {
        let (w, kept, _) = self.chunk_views(chunk);
        let state = self.state.chunk(chunk);
        if self.keeping.now || state.flags.load(Relaxed) & KEPT == 0 {
            self.keep(chunk);
        }
        if self.config.precision != Dtype::F32 {
            return self.send_narrow_position(chunk, ready, out);
        }
        let version = state.version.load(Relaxed).wrapping_add(1);
        let header = self.position_header(chunk, version, ready);
        let applied = self.state.applied(chunk);
        let len = self.config.chunk_weights as usize;
        let at = chunk as usize * len;
        let mut healed = Healed::default();
        let went = out.send_weights(
            To::Group,
            header.head_len(),
            at..at + len,
            &mut |head, weights| {
                let acks = header.emit_head(head);
                for (ack, applied) in acks.iter_mut().zip(applied) {
                    *ack = applied.load(Relaxed);
                }
                // A copy shows at once what is not finite; what the adapter reads itself was
                // checked when it was kept.
                if let Some(weights) = weights
                    && kernels::copy_out_checked(w, weights)
                {
                    healed = heal(w, kept, weights);
                }
            },
        );
        let Some(ticket) = went else {
            return false;
        };
        self.tickets[(chunk - self.ranges.of(self.config.node).start) as usize] = ticket;
        self.note_healed(chunk, healed);
        self.note_gone(chunk);
        self.note_position_sent(state, version);
        true
    }

    /// As [`send_position`](Self::send_position), copied and made narrower on the way.
    fn send_narrow_position(&mut self, chunk: u32, ready: u8, out: &mut impl Outbox) -> bool {
        let (w, kept, _) = self.chunk_views(chunk);
        let state = self.state.chunk(chunk);
        let version = state.version.load(Relaxed).wrapping_add(1);
        let mut weights = std::mem::take(&mut self.narrow.came);
        weights.resize(w.len(), 0.0);
        if kernels::copy_out_checked(w, weights.as_mut_bytes()) {
            let healed = heal(w, kept, weights.as_mut_bytes());
            self.note_healed(chunk, healed);
        }
        let part = self.next_part(chunk, version, &weights);
        let (dtype, says) = match part.part {
            0 => (self.config.precision, &weights[..]),
            piece => (Dtype::F32, &weights[self.piece(piece - 1)]),
        };
        let header = Header {
            dtype,
            payload_len: dtype.payload_len(says.len()) as u32,
            content: part.content,
            part: part.part,
            ..self.position_header(chunk, version, ready)
        };
        let applied = self.state.applied(chunk);
        let went = out.send(To::Group, header.frame_len(), &mut |slot| {
            let (acks, payload) = header.emit(slot);
            for (ack, applied) in acks.iter_mut().zip(applied) {
                *ack = applied.load(Relaxed);
            }
            wire::pack(dtype, says, payload);
        });
        if went {
            self.note_published(chunk, part, &weights);
            self.note_position_sent(state, version);
        }
        self.narrow.came = weights;
        went
    }

    fn note_position_sent(&mut self, state: &ChunkState, version: u32) {
        state.version.store(version, Relaxed);
        self.counters.positions_sent += 1;
        self.sent_positions += 1;
    }

    #[inline(always)]
    fn position_header(&self, chunk: u32, version: u32, ready: u8) -> Header {
        Header {
            kind: Kind::Position,
            flags: ready,
            dtype: Dtype::F32,
            acks: self.config.nodes as u8,
            seq: 0,
            session: self.config.session,
            epoch: self.state.epoch().load(Relaxed),
            sender: self.config.node,
            range: self.config.node,
            chunk,
            chunk_version: version,
            iterations: self.local_iterations,
            payload_len: self.config.chunk_weights * 4,
            content: 0,
            part: 0,
            held: 0,
        }
    }

    pub(super) fn handle_delta(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        if !self.ranges.owns(self.config.node, header.chunk) || header.range != self.config.node {
            return Err(DropReason::Foreign);
        }
        if !self.streaming() {
            return Err(DropReason::NotReady);
        }
        if header.epoch != self.state.epoch().load(Relaxed) {
            return Err(DropReason::Epoch);
        }
        let state = self.state.chunk(header.chunk);
        let lag = state
            .version
            .load(Relaxed)
            .wrapping_sub(header.chunk_version);
        if lag >= MAX_DELTA_LAG {
            return Err(DropReason::Late);
        }
        self.note_answer(now_ns, header, lag);
        if header.dtype == Dtype::F32 {
            if kernels::any_non_finite(frame.payload) {
                return Err(DropReason::NonFinite);
            }
            return self.take_delta(header, frame.payload, out);
        }
        let mut came = std::mem::take(&mut self.narrow.came);
        came.resize(self.config.chunk_weights as usize, 0.0);
        let applied = if wire::unpack(header.dtype, frame.payload, &mut came) {
            self.take_delta(header, came.as_bytes(), out)
        } else {
            Err(DropReason::NonFinite)
        };
        self.narrow.came = came;
        applied
    }

    /// Adds a delta that was found good: `delta`, f32.
    #[inline(always)]
    fn take_delta(
        &mut self,
        header: &Header,
        delta: &[u8],
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        // The acks of a position say which deltas are in it, so none may get into it on its way.
        let own = header.chunk - self.ranges.of(self.config.node).start;
        if self.exactly_once() && !out.has_read(self.tickets[own as usize]) {
            return Err(DropReason::Unread);
        }
        self.apply(header, delta)?;
        self.counters.deltas_applied += 1;
        Ok(())
    }

    fn apply(&mut self, header: &Header, payload: &[u8]) -> Result<(), DropReason> {
        let (w, _, _) = self.chunk_views(header.chunk);
        let journal = self.state.journal();
        let applied = &self.state.applied(header.chunk)[usize::from(header.sender)];
        if !self.exactly_once() {
            // Whatever arrives is added, as in the original: no number is looked at, nothing is
            // worth a journal entry.
            let refused = kernels::apply_delta(w, payload, 0, journal, self.writes());
            self.note_refused_sum(header.sender, header.chunk, refused);
            return Ok(());
        }
        if header.seq != applied.load(Relaxed).wrapping_add(1) {
            return Err(DropReason::Repeated);
        }
        // More than 0 if a killed predecessor had added the first weights of this very delta.
        let first = if self.partials {
            self.state.partial(header.chunk, header.sender, header.seq)
        } else {
            0
        };
        journal.begin_at(
            JournalOp::Apply,
            header.chunk,
            header.sender,
            header.seq,
            header.chunk_version,
            first,
        );
        // What would not be finite is left out, for good: the number is taken all the same, else
        // the slave would send it for ever.
        let refused = kernels::apply_delta(w, payload, first, journal, self.writes());
        applied.store(header.seq, Relaxed);
        if first > 0 {
            self.state.forget_partial(header.chunk, header.sender);
        }
        journal.end();
        self.note_refused_sum(header.sender, header.chunk, refused);
        Ok(())
    }
}
