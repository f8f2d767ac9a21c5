//! Restore: how a master that lost its weights gets them back instead of streaming initial ones
//! over a trained model.
//!
//! Both ends: a master that asks takes pieces of its range; a slave that holds a replica sends
//! them, round and round, until positions or hellos tell that they are no longer wanted. When one
//! or more have seen all of the range, the one with the lowest index is asked to send it. Then the
//! range streams under the next epoch. Invariant: pieces of one replica only are taken.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{GIVEN, JOINED};
use super::slave::Slave;
use super::{Config, Outbox, To, header};
use crate::weights::kernels;
use crate::wire::{DropReason, Dtype, Frame};

/// Versions that a restored range leaves out: other slaves may hold later ones than the survivor.
const RESTORED_VERSION_STEP: u32 = 1 << 16;

/// What a node last said of our range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
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

/// Who holds and who asks, and how far giving back is.
#[derive(Debug)]
pub(super) struct Restore {
    /// What each node last said.
    standing: Vec<Standing>,
    /// The next piece to send, counted over the pieces of all chunks.
    cursor: u32,
    /// Pieces of each chunk of the own range that have been given back, one bit each.
    restored: Vec<u8>,
}

impl Restore {
    pub(super) fn new(nodes: u16, own_chunks: usize) -> Self {
        Self {
            standing: vec![Standing::default(); usize::from(nodes)],
            cursor: 0,
            restored: vec![0; own_chunks],
        }
    }

    /// Notes what a hello of `node` says: whether it asks us for its range, whether it holds ours.
    pub(super) fn note_hello(&mut self, node: u16, asks: bool, holds: bool) {
        self.standing[usize::from(node)] = match (asks, holds) {
            (true, _) => Standing::Asks,
            (false, true) => Standing::Holds,
            (false, false) => Standing::New,
        };
    }

    /// Notes that `node` streams again, so it asks for nothing any more.
    pub(super) fn note_streams(&mut self, node: u16) {
        self.standing[usize::from(node)] = Standing::Holds;
    }

    /// Whether all others have said that they do not hold our range.
    pub(super) fn is_new(&self, common: &Common<'_>) -> bool {
        let new = |node: u16| {
            matches!(
                self.standing[usize::from(node)],
                Standing::New | Standing::Asks
            )
        };
        common.others().all(new)
    }

    /// The node that is to give us our range back, if we need it and another has it.
    pub(super) fn survivor(&self, common: &Common<'_>) -> Option<u16> {
        if common.streaming() {
            return None;
        }
        common
            .others()
            .find(|node| self.standing[usize::from(*node)] == Standing::Holds)
    }

    /// The node that asks for its range back.
    pub(super) fn asking(&self, common: &Common<'_>) -> Option<u16> {
        common
            .others()
            .find(|node| self.standing[usize::from(*node)] == Standing::Asks)
            .filter(|node| !common.ranges.of(*node).is_empty())
    }

    /// Sends `node` the next `max` pieces of its range. Returns how many went.
    pub(super) fn poll(
        &mut self,
        common: &mut Common<'_>,
        slave: &mut Slave,
        node: u16,
        max: usize,
        out: &mut impl Outbox,
    ) -> usize {
        let range = common.ranges.of(node);
        let pieces = u32::from(common.config.precision.f32_pieces());
        for sent in 0..max {
            if !range.contains(&(self.cursor / pieces)) {
                self.cursor = range.start * pieces;
            }
            let (chunk, piece) = (self.cursor / pieces, (self.cursor % pieces) as u8);
            if !send_piece(common, slave, node, (chunk, piece), out) {
                return sent;
            }
            common.shares.own_sent();
            self.cursor += 1;
        }
        max
    }

    /// Takes a piece of the own range from the node that was asked for it. With the last one the
    /// range streams again.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let (header, config) = (&frame.header, &common.config);
        let node = config.node;
        if !common.ranges.owns(node, header.chunk) || header.range != node {
            return Err(DropReason::Foreign);
        }
        if self.survivor(common) != Some(header.sender) {
            return Err(DropReason::Late);
        }
        if header.dtype != Dtype::F32 {
            return Err(DropReason::Shape);
        }
        if kernels::any_non_finite(frame.payload) {
            return Err(DropReason::NonFinite);
        }
        let (w, _, _) = common.chunk_views(header.chunk);
        let weights = config.piece(header.part);
        kernels::copy_in_bytes(w.slice(weights.start, weights.len()), frame.payload);
        let state = common.state.chunk(header.chunk);
        let version = header.chunk_version.wrapping_add(RESTORED_VERSION_STEP);
        state.version.store(version, Relaxed);
        common.counters.restores_taken += 1;
        let own = header.chunk - common.ranges.of(node).start;
        let restored = &mut self.restored[own as usize];
        *restored |= 1 << header.part;
        if *restored == all_pieces(config) && state.flags.fetch_or(JOINED, Relaxed) & JOINED == 0 {
            common.peers[usize::from(node)].joined_chunks += 1;
        }
        if common.has_joined(node) {
            // Another epoch than that of the replica: slaves count their deltas anew then, and what
            // is still on its way from or to the life that was lost is refused.
            let epoch = header.epoch.wrapping_add(1).max(1);
            common.state.epoch().store(epoch, Relaxed);
        }
        Ok(())
    }
}

/// Gives a piece of a chunk back as it is here. What local solvers added so far is in it, and
/// stays as it is however often it has to be sent: what they add meanwhile is `w - last`, as
/// ever.
fn send_piece(
    common: &mut Common<'_>,
    slave: &mut Slave,
    node: u16,
    (chunk, piece): (u32, u8),
    out: &mut impl Outbox,
) -> bool {
    let (w, last, _) = common.chunk_views(chunk);
    let weights = common.config.piece(piece);
    if weights.is_empty() {
        return true;
    }
    let state = common.state.chunk(chunk);
    // Once: all pieces of a chunk, and those that are sent again, have to be of one moment. JOINED
    // alone drops OUTSTANDING: what was under way to the life that is lost is in `w`, so in `last`.
    if state.flags.load(Relaxed) & GIVEN == 0 {
        for i in 0..w.len() {
            last.store(i, w.load(i));
        }
        state.flags.store(JOINED | GIVEN, Relaxed);
        slave.forget(chunk);
    }
    let header = header::restore(common, node, chunk, piece, weights.len());
    let went = out.send(To::Node(node), header.frame_len(), &mut |slot| {
        let (_, payload) = header.emit(slot);
        kernels::copy_out_bytes(last.slice(weights.start, weights.len()), payload);
    });
    common.counters.restores_sent += u64::from(went);
    went
}

/// The bits of all pieces that a chunk has.
fn all_pieces(config: &Config) -> u8 {
    let pieces = 0..config.precision.f32_pieces();
    let there = pieces.filter(|piece| !config.piece(*piece).is_empty());
    there.fold(0, |all, piece| all | 1 << piece)
}
