//! The master: multicasts the positions of its ranges, adds the deltas that come back.
//!
//! Holds where the turn is, the flow window and what it needs to know of its own chunks beyond
//! their numbers, which are in the state file. Invariant: what a position says in its acks is in
//! its weights, and nothing else of those nodes is.

mod numbers;

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::apply::apply;
use super::checks::Checks;
use super::common::Common;
use super::heal::{Healed, Keeping, heal, note_healed};
use super::lead::Lead;
use super::lease::Turn;
use super::momentum::Momentum;
use super::narrow::Parts;
use super::sparse::Sparse;
use super::window::Window;
use super::{Merge, Outbox, To, header};
use crate::weights::{ChunkState, kernels};
use crate::wire::{self, DropReason, Dtype, Frame, Header};

/// A delta that answers a position this many versions back is refused: its 8-bit sequence
/// number could be mistaken for a later one.
const MAX_DELTA_LAG: u32 = 128;

/// What a master knows beyond the state file.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Master {
    /// The chunks that are streamed, as of so many changes.
    turn: Turn,
    turns: u32,
    /// Next of them to send.
    cursor: u32,
    window: Window,
    lead: Lead,
    momentum: Momentum,
    sparse: Sparse,
    keeping: Keeping,
    /// What was published, where payloads are narrow.
    parts: Parts,
    checks: Checks,
    /// The ticket of each chunk's last position.
    tickets: Vec<u64>,
    /// Whether a killed predecessor left deltas added in part.
    partials: bool,
    /// One chunk on its way out of or into the buffer.
    values: Vec<f32>,
}

impl Master {
    pub(super) fn new(common: &Common<'_>) -> Self {
        let config = &common.config;
        let turn = Turn::of(common);
        let chunks = turn.len();
        Self {
            cursor: turn.runs().first().map_or(0, |run| run.start),
            turns: common.turns,
            window: Window::new(config.window_frames, chunks, config.places()),
            lead: Lead::default(),
            momentum: Momentum::default(),
            sparse: Sparse::new(config, chunks),
            keeping: Keeping::default(),
            parts: Parts::new(config, chunks),
            checks: Checks::default(),
            tickets: vec![0; config.chunks as usize],
            partials: common.state.has_partials(),
            values: Vec::new(),
            turn,
        }
    }

    /// Goes over other chunks than before, if it is time.
    #[inline]
    pub(super) fn look_at_turns(&mut self, common: &Common<'_>) {
        if self.turns != common.turns {
            self.begin_turns(common);
        }
    }

    #[cold]
    fn begin_turns(&mut self, common: &Common<'_>) {
        let mut before = std::mem::replace(self, Self::new(common));
        self.checks = std::mem::take(&mut before.checks).begin_turns();
        // What the adapter has yet to read does not depend on whose range it is in.
        self.tickets = before.tickets;
        self.lead = before.lead;
        if before.turn.len() > 0 {
            // A new window would double until it overruns a queue, and the others with it.
            self.window = before.window;
            let chunks = self.turn.len();
            self.window.turn_to(common.config.window_frames, chunks);
        }
        if self.turn.len() > 0 {
            self.cursor = self.turn.at(before.cursor);
        }
    }

    /// The flow window.
    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// Tells whether the solvers of this node have finished.
    pub(super) fn set_finished(&mut self, finished: bool) {
        self.momentum.set_finished(finished);
    }

    /// A chunk's place in the turn.
    #[inline(always)]
    fn own(&self, chunk: u32) -> usize {
        self.turn.place(chunk)
    }

    /// Positions that would go now if there were room for them: what the flow window says.
    #[inline]
    pub(super) fn positions_wanted(&mut self, now_ns: u64) -> usize {
        if self.turn.len() == 0 {
            return 0;
        }
        self.window.left(now_ns)
    }

    /// Sends positions of the own ranges, round-robin, until `max` or the transport says stop.
    /// Returns how many.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        max: usize,
        out: &mut impl Outbox,
    ) -> usize {
        for sent in 0..max {
            if common.config.sparse {
                self.skip_resting(now_ns, common);
            }
            let went = if self.cursor == self.checks.at() {
                self.send_and_check(common, out)
            } else {
                self.send_position(common, self.cursor, out)
            };
            if !went {
                return sent;
            }
            common.shares.own_sent();
            let number = self.window.note_sent(now_ns);
            self.sparse.note_went(self.own(self.cursor), number);
            self.next_turn(now_ns, common);
        }
        max
    }

    /// Passes over chunks that may wait, at most once over the range.
    fn skip_resting(&mut self, now_ns: u64, common: &mut Common<'_>) {
        for _ in 0..self.sparse.chunks() {
            let (w, _, published) = common.chunk_views(self.cursor);
            let own = self.own(self.cursor);
            let checked = self.cursor == self.checks.at();
            if checked || !self.sparse.lets_wait(own, w, published) {
                return;
            }
            self.next_turn(now_ns, common);
        }
    }

    /// The turn goes to the next chunk.
    #[inline]
    fn next_turn(&mut self, now_ns: u64, common: &mut Common<'_>) {
        let before = self.cursor;
        self.cursor = self.turn.at(before + 1);
        if self.cursor <= before {
            common.counters.cycles += 1;
            self.keeping.begin_pass(now_ns);
            self.lead.begin_turn(common.steps());
            let nodes = (common.config.merge == Merge::Mean).then(|| common.nodes_that_learn());
            self.momentum
                .begin_turn(self.turn.len(), self.lead.steps(), nodes);
            self.checks.begin_pass(now_ns, &common.config, &self.turn);
        }
    }

    /// As [`send_position`](Self::send_position), of a chunk that is checked.
    #[cold]
    #[inline(never)]
    fn send_and_check(&mut self, common: &mut Common<'_>, out: &mut impl Outbox) -> bool {
        let has_read = out.has_read(self.tickets[self.cursor as usize]);
        let Some(mut out) = self.checks.begin(common, has_read, out) else {
            return false;
        };
        let went = self.send_position(common, self.cursor, &mut out);
        if went {
            self.checks
                .note_went(&common.config, &self.turn, &out.frame);
        }
        went
    }

    fn send_position(
        &mut self,
        common: &mut Common<'_>,
        chunk: u32,
        out: &mut impl Outbox,
    ) -> bool {
        let (w, kept, published) = common.chunk_views(chunk);
        let state = common.state.chunk(chunk);
        self.move_on(common, chunk, w);
        self.keeping.poll(common, chunk);
        if common.config.precision != Dtype::F32 {
            return self.send_narrow_position(common, chunk, out);
        }
        let version = state.version.load(Relaxed).wrapping_add(1);
        let header = Header {
            held: self.lead(common),
            ..header::position(common, chunk, version)
        };
        let applied = common.state.applied(chunk);
        let len = common.config.chunk_weights as usize;
        let at = chunk as usize * len;
        let mut healed = Healed::default();
        note_position_goes(state, version);
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
            note_position_stayed(state, version);
            return false;
        };
        self.tickets[chunk as usize] = ticket;
        self.momentum.note_went();
        note_healed(common, chunk, healed);
        self.sparse.note_gone(w, published, &mut self.values);
        common.counters.positions_sent += 1;
        true
    }

    /// As [`send_position`](Self::send_position), copied and made narrower on the way.
    fn send_narrow_position(
        &mut self,
        common: &mut Common<'_>,
        chunk: u32,
        out: &mut impl Outbox,
    ) -> bool {
        let (w, kept, published) = common.chunk_views(chunk);
        let (own, state) = (self.own(chunk), common.state.chunk(chunk));
        let version = state.version.load(Relaxed).wrapping_add(1);
        let lead = self.lead(common);
        let weights = &mut self.values;
        weights.resize(w.len(), 0.0);
        if kernels::copy_out_checked(w, weights.as_mut_bytes()) {
            let healed = heal(w, kept, weights.as_mut_bytes());
            note_healed(common, chunk, healed);
        }
        let weights = &weights[..];
        let config = &common.config;
        let part = self.parts.next(config, own, version, (weights, published));
        let (dtype, says) = match part.part {
            0 => (config.precision, weights),
            piece => (Dtype::F32, &weights[config.piece(piece - 1)]),
        };
        let header = Header {
            held: lead,
            ..header::position_part(common, chunk, version, part, (dtype, says.len()))
        };
        let applied = common.state.applied(chunk);
        note_position_goes(state, version);
        let went = out.send(To::Group, header.frame_len(), &mut |slot| {
            let (acks, payload) = header.emit(slot);
            for (ack, applied) in acks.iter_mut().zip(applied) {
                *ack = applied.load(Relaxed);
            }
            wire::pack(dtype, says, payload);
        });
        if went {
            self.parts.note_went(own, part, (weights, published));
            self.momentum.note_went();
            common.counters.positions_sent += 1;
        } else {
            note_position_stayed(state, version);
        }
        went
    }

    pub(super) fn handle_delta(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let range = header.range;
        if range >= common.config.places() || !common.ranges.has(range, header.chunk) {
            return Err(DropReason::Foreign);
        }
        let epoch = common.streamed(range);
        if epoch == 0 {
            return Err(DropReason::NotReady);
        }
        if header.epoch != epoch {
            return Err(DropReason::Epoch);
        }
        let joined = (common.config.node, header.chunk);
        common.forks.note_joined(now_ns, header.sender, joined);
        // Positions go by the turn from the next poll on.
        self.look_at_turns(common);
        let state = common.state.chunk(header.chunk);
        let lag = state
            .version
            .load(Relaxed)
            .wrapping_sub(header.chunk_version);
        if lag >= MAX_DELTA_LAG {
            return Err(DropReason::Late);
        }
        let reached = self.reached(header, lag);
        self.lead
            .note_answer(self.window.sent().saturating_sub(reached));
        self.window.note_answer(now_ns, common, header, reached);
        if header.dtype == Dtype::F32 {
            if kernels::any_non_finite(frame.payload) {
                return Err(DropReason::NonFinite);
            }
            return self.take_delta(common, header, frame.payload, out);
        }
        let mut came = std::mem::take(&mut self.values);
        came.resize(common.config.chunk_weights as usize, 0.0);
        let applied = if wire::unpack(header.dtype, frame.payload, &mut came) {
            self.take_delta(common, header, came.as_bytes(), out)
        } else {
            Err(DropReason::NonFinite)
        };
        self.values = came;
        applied
    }

    /// Adds a delta that was found good: `delta`, f32.
    #[inline(always)]
    fn take_delta(
        &self,
        common: &mut Common<'_>,
        header: &Header,
        delta: &[u8],
        out: &mut impl Outbox,
    ) -> Result<(), DropReason> {
        // The acks of a position say which deltas are in it, so none may get into it on its way:
        // with one that the acks lack, the slave would send it again, and it would count twice.
        let ticket = self.tickets[header.chunk as usize];
        if common.exactly_once() && !out.has_read(ticket) {
            return Err(DropReason::Unread);
        }
        apply(common, self.partials, header, delta)?;
        common.counters.deltas_applied += 1;
        common.exchanged[usize::from(header.sender)].deltas_applied += 1;
        Ok(())
    }
}

/// A position is about to go. Noted before: who is killed in the send may have sent it, and two
/// positions of one version would be taken for the same.
#[inline]
fn note_position_goes(state: &ChunkState, version: u32) {
    state.version.store(version, Relaxed);
}

/// There was no room for it.
#[inline]
fn note_position_stayed(state: &ChunkState, version: u32) {
    state.version.store(version.wrapping_sub(1), Relaxed);
}

#[cfg(test)]
impl Master {
    /// What it keeps beyond the state file, where nothing limits the window.
    pub(super) fn kept(&self, common: &Common<'_>) -> impl std::fmt::Debug {
        let turns = common.turns.wrapping_sub(self.turns);
        (&self.turn, self.cursor, turns)
    }
}
