//! The ranges of nodes that are away: a slave that lacks chunks of them takes them from the replica
//! of another node.
//!
//! So a node that comes late, or lost its memory, is ready although a master is dead. A replica is
//! joined like a position, but nothing is sent to its master before that knows this life.
//! [`replicas`](super::replicas) answers.

use std::sync::atomic::Ordering::Relaxed;

use super::common::chunk_flags::JOINED;
use super::common::{Common, note_taken};
use super::pull::{all_pieces, check_piece, is_alive};
use super::slave::note_acks;
use super::{Outbox, To, header};
use crate::weights::kernels;
use crate::wire::{self, DropReason, Frame, Hello};

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
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Per range, the node that last said that it holds some of it.
    holders: Vec<Option<u16>>,
    /// Who was asked, and for what.
    node: u16,
    asked: Vec<Asked>,
    asked_ns: u64,
}

impl Missing {
    /// Notes what the hello of `node` says of the ranges of others.
    pub(super) fn hear(&mut self, common: &Common<'_>, node: u16, hello: &Hello) {
        self.holders.resize(common.config.nodes.into(), None);
        for (of, seen) in (hello.first..).zip(&hello.seen) {
            if of != node && seen.held > 0 {
                self.holders[usize::from(of)] = Some(node);
            }
        }
    }

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
        let Some((range, holder)) = self.lacking(now_ns, common) else {
            return;
        };
        let lacks = |chunk: &u32| !is_joined(common, *chunk);
        let chunks = common.ranges.of(range).filter(lacks);
        let chunks: Vec<u32> = chunks.take(wire::ASK_MAX).collect();
        let header = header::ask_for_replica(common, range, &chunks);
        let went = out.send_hello(To::Node(holder), header.frame_len(), &mut |slot| {
            wire::emit_chunks(&chunks, header.emit(slot).1);
        });
        if went {
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
    fn lacking(&self, now_ns: u64, common: &Common<'_>) -> Option<(u16, u16)> {
        let mut others = common.others();
        others.find_map(|range| {
            let away = !common.has_joined(range) && !is_alive(now_ns, common, range);
            let holder = (*self.holders.get(usize::from(range))?)?;
            (away && is_alive(now_ns, common, holder)).then_some((range, holder))
        })
    }

    /// Takes a piece of a replica.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        check_piece(common, frame)?;
        let at = self.asked.iter().position(|one| one.chunk == header.chunk);
        let at = at.filter(|_| header.sender == self.node && !is_joined(common, header.chunk));
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
            join(common, frame);
        }
        Ok(())
    }
}

fn is_joined(common: &Common<'_>, chunk: u32) -> bool {
    common.state.chunk(chunk).flags.load(Relaxed) & JOINED != 0
}

/// The replica of a chunk is whole.
fn join(common: &mut Common<'_>, frame: &Frame<'_>) {
    let header = &frame.header;
    common.promise(header.range, header.epoch);
    note_acks(common, frame);
    let state = common.state.chunk(header.chunk);
    state.epoch.store(header.content, Relaxed);
    let ack = frame.acks[usize::from(common.config.node)];
    note_taken(state, header.chunk_version, Some(ack), false);
    let peer = &mut common.peers[usize::from(header.range)];
    peer.joined_chunks += 1;
    peer.by_replica = true;
}
