//! The ranges of nodes that are away: a slave that lacks chunks of them takes them from the replica
//! of another node.
//!
//! So a node that comes late, or lost its memory, is ready although a master is dead. A replica is
//! joined like a position, but nothing is sent to its master before that knows this life.
//! [`replicas`](super::replicas) answers.

use std::sync::atomic::Ordering::Relaxed;

use super::common::{Common, note_taken};
use super::pieces::{all_pieces, send_list};
use super::take::note_acks;
use super::{Outbox, header};
use crate::weights::kernels;
use crate::wire::{self, DropReason, Frame};

/// What did not come is asked for again after this, ns.
const AGAIN_NS: u64 = 100_000_000;

/// A chunk that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    chunk: u32,
    version: u32,
    /// Pieces that came, one bit each.
    pieces: u8,
}

/// What was asked for, and of whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing {
    /// Who was asked, and for what.
    node: u16,
    asked: Vec<Asked>,
    asked_ns: u64,
}

impl Missing {
    /// Asks for the next chunks of a range whose master is away, if this node is not ready.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        if !common.ready() {
            self.poll_asking(now_ns, common, out);
        }
    }

    #[cold]
    fn poll_asking(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        if !self.asked.is_empty() && now_ns.saturating_sub(self.asked_ns) < AGAIN_NS {
            return;
        }
        let Some((range, holder)) = Self::lacking(now_ns, common) else {
            return;
        };
        let lacks = |chunk: &u32| !common.holds(*chunk);
        let chunks = common.ranges.of(range).filter(lacks);
        let chunks: Vec<u32> = chunks.take(wire::ASK_MAX).collect();
        let epoch = common.promised(range);
        let header = header::ask(common, range, epoch, &chunks, header::REPLICA);
        if send_list(holder, &header, &chunks, out) {
            let asked = |chunk| Asked {
                chunk,
                version: 0,
                pieces: 0,
            };
            self.asked = chunks.into_iter().map(asked).collect();
            (self.node, self.asked_ns) = (holder, now_ns);
        }
    }

    /// A range of which chunks are missing, whose master is away, and a living node that holds some
    /// of it.
    fn lacking(now_ns: u64, common: &Common<'_>) -> Option<(u16, u16)> {
        let holds = |node: u16, range: u16| {
            let told = common.told(node, range);
            told.is_some_and(|told| told.held > 0)
        };
        // Of a range of which nothing is known here its home is the master.
        let master = |range: u16| {
            common
                .owner(range)
                .unwrap_or_else(|| common.ranges.home(range))
        };
        let away = |range: &u16| {
            let master = master(*range);
            master != common.config.node
                && !common.has_joined(*range)
                && !common.is_alive(now_ns, master)
        };
        let mut ranges = (0..common.config.places()).filter(away);
        ranges.find_map(|range| {
            let mut living = common.living(now_ns);
            let holder = living.find(|node| holds(*node, range))?;
            Some((range, holder))
        })
    }

    /// Takes a piece of a replica.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let at = self.asked.iter().position(|one| one.chunk == header.chunk);
        // It may come late: the chunk came from its master meanwhile, or is streamed here by now.
        let lacks = !common.holds(header.chunk) && !common.streams(header.range);
        let at = at.filter(|_| header.sender == self.node && lacks);
        let at = at.ok_or(DropReason::Late)?;
        let asked = &mut self.asked[at];
        if asked.version != header.chunk_version {
            // Pieces of one chunk have to be of one position.
            (asked.version, asked.pieces) = (header.chunk_version, 0);
        }
        let (w, last, sent) = common.chunk_views(header.chunk);
        let piece = common.config.piece(header.part);
        let [w, last, sent] = [w, last, sent].map(|view| view.slice(piece.start, piece.len()));
        kernels::adopt(w, last, sent, frame.payload);
        asked.pieces |= 1 << header.part;
        common.counters.restores_taken += 1;
        if asked.pieces == all_pieces(&common.config) {
            self.asked.swap_remove(at);
            join_replica(common, frame);
        }
        Ok(())
    }
}

/// The replica of a chunk is whole, and in the buffer.
pub(super) fn join_replica(common: &mut Common<'_>, frame: &Frame<'_>) {
    let header = &frame.header;
    common.promise(header.range, header.epoch);
    note_acks(common, frame);
    let state = common.state.chunk(header.chunk);
    state.epoch.store(header.epoch, Relaxed);
    let ack = frame.acks[usize::from(common.config.node)];
    note_taken(state, header.chunk_version, Some(ack), false);
    common.note_inexact(header.chunk);
    let lease = &mut common.leases[usize::from(header.range)];
    lease.joined_chunks += 1;
    lease.by_replica = true;
}
