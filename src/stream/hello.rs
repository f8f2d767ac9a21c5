//! Hello and restore: who is there, who has seen what, and how a master that lost its weights gets
//! them back instead of streaming initial ones over a trained model.
//!
//! A node without state of its own (epoch 0) does not stream. It says hello and listens:
//! - when every other node has said that it has seen nothing of the range, the range is new: it
//!   streams, under epoch 1;
//! - when one has seen all of it, that node (the one with the lowest index) is asked to send its
//!   replica back; then the range streams under the next epoch.

use std::sync::atomic::Ordering::Relaxed;

use super::streamer::chunk_flags::{GIVEN, JOINED};
use super::{Outbox, Streamer, To};
use crate::weights::kernels;
use crate::wire::{DropReason, Dtype, Frame, Header, Hello, Kind, RangeSeen};

/// Time between hellos until everybody has been heard, and from then on, ns.
const HELLO_SOON_NS: u64 = 20_000_000;
const HELLO_LATER_NS: u64 = 500_000_000;
/// A node whose position came within this time streams, ns.
const STREAMS_NS: u64 = 1_000_000_000;
/// In a hello's `range`: nobody is asked for a restore.
const NOBODY: u16 = u16::MAX;
/// Versions that a restored range leaves out: other slaves may hold later ones than the survivor.
const RESTORED_VERSION_STEP: u32 = 1 << 16;

/// What a node last said of our range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing yet.
    #[default]
    Unheard,
    /// It has not seen all of our range.
    New,
    /// It holds a replica of our range, of this epoch.
    Holds,
    /// It asks us for the replica of its range.
    Asks,
}

impl Streamer<'_> {
    pub(super) fn poll_hello(&mut self, now_ns: u64, out: &mut impl Outbox) {
        if now_ns < self.hello_due_ns {
            return;
        }
        let settled = self.ready() && self.others().all(|node| self.peers[node as usize].ready);
        self.hello_due_ns = now_ns
            + if settled {
                HELLO_LATER_NS
            } else {
                HELLO_SOON_NS
            };
        let hello = Hello {
            fingerprint: self.config.fingerprint,
            data: self.config.data,
            first_weights: self.config.first_weights,
            incarnation: self.config.incarnation,
            chunk_weights: self.config.chunk_weights,
            chunks: self.config.chunks,
            masters: self.config.masters,
            seen: (0..self.config.nodes).map(|node| self.seen(node)).collect(),
        };
        let header = Header {
            kind: Kind::Hello,
            flags: self.ready_flag(),
            dtype: Dtype::None,
            acks: 0,
            seq: 0,
            session: self.config.session,
            epoch: self.state.epoch().load(Relaxed),
            sender: self.config.node,
            range: self.survivor().unwrap_or(NOBODY),
            chunk: 0,
            chunk_version: 0,
            iterations: self.local_iterations,
            payload_len: Hello::len(self.config.nodes) as u32,
            content: 0,
            part: 0,
            held: 0,
        };
        let went = out.send_hello(To::Group, header.frame_len(), &mut |slot| {
            hello.emit(header.emit(slot).1)
        });
        self.counters.hellos_sent += u64::from(went);
        if !went {
            // A few bytes that others wait for: as soon as there is a slot.
            self.hello_due_ns = now_ns;
        }
    }

    fn seen(&self, node: u16) -> RangeSeen {
        if node == self.config.node {
            return if self.streaming() {
                RangeSeen::All
            } else {
                RangeSeen::Nothing
            };
        }
        match self.peers[node as usize].joined_chunks as usize {
            all if all == self.ranges.of(node).len() => RangeSeen::All,
            0 => RangeSeen::Nothing,
            _ => RangeSeen::Part,
        }
    }

    /// The node that is to give us our range back, if we need it and somebody has it.
    fn survivor(&self) -> Option<u16> {
        if self.streaming() {
            return None;
        }
        self.others()
            .find(|node| self.peers[*node as usize].standing == Standing::Holds)
    }

    pub(super) fn handle_hello(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let hello = Hello::parse(frame.payload).ok_or(DropReason::Malformed)?;
        let sender = frame.header.sender;
        if !self.check_stranger(now_ns, sender, &hello) {
            return Err(DropReason::Shape);
        }
        self.check_first_weights(frame, &hello);
        self.counters.hellos_taken += 1;
        // Who asks does not stream; a question that arrives after positions has been overtaken by
        // them.
        let streamed_ns = self.peers[sender as usize].streamed_ns;
        let streams = streamed_ns != 0 && now_ns.saturating_sub(streamed_ns) < STREAMS_NS;
        let asks = frame.header.range == self.config.node && !streams;
        let holds = hello.seen[self.config.node as usize] == RangeSeen::All
            && !self.ranges.of(self.config.node).is_empty();
        self.peers[sender as usize].standing = match (asks, holds) {
            (true, _) => Standing::Asks,
            (false, true) => Standing::Holds,
            (false, false) => Standing::New,
        };
        let new = |node: u16| {
            matches!(
                self.peers[node as usize].standing,
                Standing::New | Standing::Asks
            )
        };
        if !self.streaming() && self.others().all(new) {
            self.state.epoch().store(1, Relaxed);
        }
        Ok(())
    }

    /// The node that asks for its range back.
    pub(super) fn asking(&self) -> Option<u16> {
        self.others()
            .find(|node| self.peers[*node as usize].standing == Standing::Asks)
            .filter(|node| !self.ranges.of(*node).is_empty())
    }

    /// Sends `node` the next `max` pieces of its range. Returns how many went.
    pub(super) fn poll_restore(&mut self, node: u16, max: usize, out: &mut impl Outbox) -> usize {
        let range = self.ranges.of(node);
        let pieces = u32::from(self.config.precision.f32_pieces());
        for sent in 0..max {
            if !range.contains(&(self.restore_cursor / pieces)) {
                self.restore_cursor = range.start * pieces;
            }
            let piece = (self.restore_cursor % pieces) as u8;
            if !self.send_restore(node, self.restore_cursor / pieces, piece, out) {
                return sent;
            }
            self.shares.own_sent();
            self.restore_cursor += 1;
        }
        max
    }

    /// Gives a piece of a chunk back as it is here. What local solvers added so far is in it, and
    /// stays as it is however often it has to be sent: what they add meanwhile is `w - last`, as
    /// ever.
    fn send_restore(&mut self, node: u16, chunk: u32, piece: u8, out: &mut impl Outbox) -> bool {
        let (w, last, _) = self.chunk_views(chunk);
        let weights = self.piece(piece);
        if weights.is_empty() {
            return true;
        }
        let state = self.state.chunk(chunk);
        if state.flags.load(Relaxed) & GIVEN == 0 {
            for i in 0..w.len() {
                last.store(i, w.load(i));
            }
            state.flags.store(JOINED | GIVEN, Relaxed);
            self.narrow.forget(chunk);
        }
        let header = Header {
            kind: Kind::Restore,
            flags: self.ready_flag(),
            dtype: Dtype::F32,
            acks: 0,
            seq: 0,
            session: self.config.session,
            epoch: u32::from(state.epoch.load(Relaxed)),
            sender: self.config.node,
            range: node,
            chunk,
            chunk_version: state.version.load(Relaxed),
            iterations: self.local_iterations,
            payload_len: 4 * weights.len() as u32,
            content: 0,
            part: piece,
            held: 0,
        };
        let went = out.send(To::Node(node), header.frame_len(), &mut |slot| {
            let (_, payload) = header.emit(slot);
            kernels::copy_out_bytes(last.slice(weights.start, weights.len()), payload);
        });
        self.counters.restores_sent += u64::from(went);
        went
    }

    pub(super) fn handle_restore(&mut self, frame: &Frame<'_>) -> Result<(), DropReason> {
        let header = &frame.header;
        if !self.ranges.owns(self.config.node, header.chunk) || header.range != self.config.node {
            return Err(DropReason::Foreign);
        }
        if self.survivor() != Some(header.sender) {
            return Err(DropReason::Late);
        }
        if header.dtype != Dtype::F32 {
            return Err(DropReason::Shape);
        }
        if kernels::any_non_finite(frame.payload) {
            return Err(DropReason::NonFinite);
        }
        let (w, _, _) = self.chunk_views(header.chunk);
        let weights = self.piece(header.part);
        kernels::copy_in_bytes(w.slice(weights.start, weights.len()), frame.payload);
        let state = self.state.chunk(header.chunk);
        let restored = header.chunk_version.wrapping_add(RESTORED_VERSION_STEP);
        state.version.store(restored, Relaxed);
        self.counters.restores_taken += 1;
        let own = self.config.node as usize;
        let at = header.chunk - self.ranges.of(self.config.node).start;
        let restored = &mut self.narrow.restored[at as usize];
        *restored |= 1 << header.part;
        let pieces =
            (0..self.config.precision.f32_pieces()).filter(|piece| !self.piece(*piece).is_empty());
        let all = pieces.fold(0, |all, piece| all | 1 << piece);
        if self.narrow.restored[at as usize] == all
            && state.flags.fetch_or(JOINED, Relaxed) & JOINED == 0
        {
            self.peers[own].joined_chunks += 1;
        }
        if self.has_joined(self.config.node) {
            self.state
                .epoch()
                .store(header.epoch.wrapping_add(1).max(1), Relaxed);
        }
        Ok(())
    }
}
