//! A restore that is going on: which node holds the newest position of each chunk of the own range,
//! and the chunks that came.
//!
//! Two windows go over the range: blocks that are surveyed, and behind them chunks that are pulled.
//! What gets lost is asked for again; who falls silent is asked no more.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::epochs::ahead;
use super::{Config, Outbox, To, header};
use crate::weights::kernels;
use crate::wire::{self, DropReason, Dtype, Frame};

/// Versions that a restored range leaves out: deltas from before are too late then.
const VERSION_STEP: u32 = 1 << 16;
/// A node that was silent for so long is not waited for, ns.
const ALIVE_NS: u64 = 2_000_000_000;
/// A node that was silent for so long is given up: what only it holds begins anew, ns.
const LOST_NS: u64 = 30_000_000_000;
/// What is not answered is asked again after this, ns; a chunk after twice the longest time that
/// one took to come.
const AGAIN_NS: u64 = 50_000_000;
/// Time between two looks at what is to be asked, unless something comes, ns.
const POLL_NS: u64 = 1_000_000;
/// A node that was asked so often for a chunk without sending it may not hold it any more.
const TRIES: u8 = 8;
/// Blocks that are surveyed, and chunks that are pulled, at a time.
const BLOCKS: usize = 32;
const CHUNKS: u32 = 256;
/// A chunk that was asked for so many chunks before one that came is lost, or its ask is.
const OVERTAKEN: u32 = 16;

/// What is known of a block of chunks of the own range.
#[derive(Clone, Debug, Default)]
struct Block {
    /// The nodes that have offered, one bit each.
    offered: [u64; 4],
    asked_ns: u64,
}

impl Block {
    fn note_offer(&mut self, node: u16) {
        self.offered[usize::from(node) / 64] |= 1 << (node % 64);
    }

    fn has_offer(&self, node: u16) -> bool {
        self.offered[usize::from(node) / 64] & 1 << (node % 64) != 0
    }
}

/// The newest position of a chunk that was offered.
#[derive(Clone, Copy, Debug)]
struct Newest {
    node: u16,
    /// Low half.
    epoch: u16,
    version: u32,
}

impl Newest {
    fn is_older(&self, epoch: u16, version: u32) -> bool {
        let epochs = epoch.wrapping_sub(self.epoch) as i16;
        epochs > 0 || (epochs == 0 && ahead(version, self.version) > 0)
    }
}

/// A chunk of the own range.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    newest: Option<Newest>,
    /// Pieces that came, one bit each.
    pieces: u8,
    done: bool,
    /// When it was asked for, ns (0: not yet), and the how many-th of its node it was.
    asked_ns: u64,
    order: u32,
    /// How often that was.
    tries: u8,
}

/// A restore that is going on.
#[derive(Debug, Default)]
pub(super) struct Going {
    /// The epoch that the range will stream in.
    pub(super) epoch: u32,
    blocks: Vec<Block>,
    chunks: Vec<Own>,
    /// Blocks and chunks before these are done.
    surveyed: usize,
    pulled: usize,
    /// Per node, chunks that it was asked for, and the latest of them that came.
    asked: Vec<u32>,
    came: Vec<u32>,
    came_ns: u64,
    /// The longest time that a chunk took to come, ns; 0: none has.
    slowest_ns: u64,
    /// Chunks that no node holds.
    pub(super) missing: u32,
    due_ns: u64,
    /// When the first of the others told what it holds, ns.
    told_ns: u64,
    /// The epoch turned out to be known to another node: all begins again in a later one.
    pub(super) stale: bool,
}

impl Going {
    pub(super) fn new(epoch: u32, told_ns: u64, own_chunks: usize, nodes: u16) -> Self {
        let blocks = own_chunks.div_ceil(wire::BLOCK_CHUNKS as usize);
        Self {
            epoch,
            told_ns,
            blocks: vec![Block::default(); blocks],
            chunks: vec![Own::default(); own_chunks],
            asked: vec![0; nodes.into()],
            came: vec![0; nodes.into()],
            ..Self::default()
        }
    }

    /// Asks for what comes next. True: all is there.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        out: &mut impl Outbox,
    ) -> bool {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + POLL_NS;
            self.survey(now_ns, common, out);
            self.pull(now_ns, common, out);
        }
        self.pulled == self.chunks.len()
    }

    /// Notes which positions `node` offers, of the own chunks from `own` on.
    pub(super) fn note_offer(
        &mut self,
        own: u32,
        node: u16,
        offers: &[wire::Held],
    ) -> Result<(), DropReason> {
        let first = own as usize;
        let at = (own / wire::BLOCK_CHUNKS) as usize;
        let end = self.chunks.len().min(first + wire::BLOCK_CHUNKS as usize);
        if !own.is_multiple_of(wire::BLOCK_CHUNKS) || offers.len() != end - first {
            return Err(DropReason::Malformed);
        }
        self.blocks[at].note_offer(node);
        for (chunk, offer) in self.chunks[first..end].iter_mut().zip(offers) {
            let Some((epoch, version)) = offer.position() else {
                continue;
            };
            // What is being pulled stays: a node that was thought dead may hold a newer one, and
            // then its numbers are made to fit.
            let newer = chunk
                .newest
                .is_none_or(|newest| newest.is_older(epoch, version));
            if newer && chunk.asked_ns == 0 && !chunk.done {
                chunk.newest = Some(Newest {
                    node,
                    epoch,
                    version,
                });
            }
        }
        Ok(())
    }

    /// Asks all nodes for what they hold of the next blocks.
    fn survey(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        let first = common.ranges.of(common.config.node).start;
        let end = self.blocks.len().min(self.surveyed + BLOCKS);
        for at in self.surveyed..end {
            if is_surveyed(&self.blocks[at], now_ns, common) {
                if at == self.surveyed {
                    self.surveyed += 1;
                }
                continue;
            }
            let block = &mut self.blocks[at];
            if block.asked_ns != 0 && now_ns.saturating_sub(block.asked_ns) < AGAIN_NS {
                continue;
            }
            let chunk = first + at as u32 * wire::BLOCK_CHUNKS;
            let header = header::ask(common, chunk, self.epoch, None);
            let went = out.send_hello(To::Group, header.frame_len(), &mut |slot| {
                header.emit(slot);
            });
            if !went {
                return;
            }
            block.asked_ns = now_ns.max(1);
        }
    }

    /// Asks for the next chunks, each at the node that holds its newest position.
    fn pull(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        let surveyed = self.surveyed * wire::BLOCK_CHUNKS as usize;
        let end = surveyed.min(self.chunks.len());
        let mut lists: Vec<(u16, Vec<u32>)> = Vec::new();
        let mut waiting = 0;
        for at in self.pulled..end {
            if self.chunks[at].done {
                if at == self.pulled {
                    self.pulled += 1;
                }
                continue;
            }
            if waiting == CHUNKS {
                break;
            }
            match self.chunks[at].newest {
                None if self.may_begin_new(now_ns, common) => self.begin_new(at),
                None => {
                    self.survey_again(at);
                    break;
                }
                Some(newest)
                    if !is_alive(now_ns, common, newest.node) || self.chunks[at].tries > TRIES =>
                {
                    self.survey_again(at);
                    break;
                }
                Some(newest) => {
                    waiting += 1;
                    if self.is_due(now_ns, at, newest.node) {
                        note(&mut lists, newest.node, at as u32);
                    }
                }
            }
        }
        for (node, list) in lists {
            self.ask_for(now_ns, common, node, &list, out);
        }
    }

    /// Whether all nodes that may hold what no other does are given up.
    fn may_begin_new(&self, now_ns: u64, common: &Common<'_>) -> bool {
        let lost = |node: u16| {
            let heard_ns = common.peers[usize::from(node)].heard_ns.max(self.told_ns);
            now_ns.saturating_sub(heard_ns) >= LOST_NS
        };
        let mut others = common.others();
        others.all(|node| is_alive(now_ns, common, node) || lost(node))
    }

    /// No living node holds the chunk: it begins with the initial weights.
    fn begin_new(&mut self, at: usize) {
        self.chunks[at].done = true;
        self.missing += 1;
    }

    /// The node that held the chunk is silent or does not hold it any more: others may.
    fn survey_again(&mut self, at: usize) {
        let block = at / wire::BLOCK_CHUNKS as usize;
        self.blocks[block] = Block::default();
        self.surveyed = self.surveyed.min(block);
        let first = block * wire::BLOCK_CHUNKS as usize;
        let end = self.chunks.len().min(first + wire::BLOCK_CHUNKS as usize);
        for chunk in self.chunks[first..end].iter_mut().filter(|one| !one.done) {
            *chunk = Own::default();
        }
    }

    fn is_due(&self, now_ns: u64, at: usize, node: u16) -> bool {
        let chunk = &self.chunks[at];
        let overtaken = ahead(self.came[usize::from(node)], chunk.order) > OVERTAKEN;
        let patience_ns = match self.slowest_ns {
            0 => AGAIN_NS,
            slowest_ns => 2 * slowest_ns.clamp(AGAIN_NS / 4, 10 * AGAIN_NS),
        };
        let idle = now_ns.saturating_sub(chunk.asked_ns.max(self.came_ns)) > patience_ns;
        chunk.asked_ns == 0 || overtaken || idle
    }

    fn ask_for(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        node: u16,
        list: &[u32],
        out: &mut impl Outbox,
    ) {
        let first = common.ranges.of(common.config.node).start;
        for list in list.chunks(wire::ASK_MAX) {
            let chunks: Vec<u32> = list.iter().map(|own| first + own).collect();
            let header = header::ask(common, chunks[0], self.epoch, Some(4 * chunks.len()));
            let went = out.send_hello(To::Node(node), header.frame_len(), &mut |slot| {
                wire::emit_chunks(&chunks, header.emit(slot).1);
            });
            if !went {
                return;
            }
            for own in list {
                let asked = &mut self.asked[usize::from(node)];
                *asked += 1;
                let chunk = &mut self.chunks[*own as usize];
                (chunk.asked_ns, chunk.order) = (now_ns.max(1), *asked);
                chunk.tries = chunk.tries.saturating_add(1);
            }
        }
    }

    /// Takes a piece of the own chunk `at`.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        at: usize,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let own = &mut self.chunks[at];
        let wanted = own.newest.is_some_and(|newest| {
            newest.node == header.sender && newest.version == header.chunk_version
        });
        if own.done || own.asked_ns == 0 || !wanted {
            return Err(DropReason::Late);
        }
        let (w, _, _) = common.chunk_views(header.chunk);
        let weights = common.config.piece(header.part);
        kernels::copy_in_bytes(w.slice(weights.start, weights.len()), frame.payload);
        own.pieces |= 1 << header.part;
        let came = &mut self.came[usize::from(header.sender)];
        *came = (*came).max(own.order);
        self.came_ns = now_ns;
        self.slowest_ns = self.slowest_ns.max(now_ns.saturating_sub(own.asked_ns));
        common.counters.restores_taken += 1;
        if own.pieces == all_pieces(&common.config) {
            own.done = true;
            for (applied, ack) in common.state.applied(header.chunk).iter().zip(frame.acks) {
                applied.store(*ack, Relaxed);
            }
            let version = header.chunk_version.wrapping_add(VERSION_STEP);
            common
                .state
                .chunk(header.chunk)
                .version
                .store(version, Relaxed);
        }
        // More may be asked for.
        self.due_ns = 0;
        Ok(())
    }
}

fn note(lists: &mut Vec<(u16, Vec<u32>)>, node: u16, own: u32) {
    match lists.iter_mut().find(|(of, _)| *of == node) {
        Some((_, list)) => list.push(own),
        None => lists.push((node, vec![own])),
    }
}

pub(super) fn is_alive(now_ns: u64, common: &Common<'_>, node: u16) -> bool {
    let heard_ns = common.peers[usize::from(node)].heard_ns;
    heard_ns != 0 && now_ns.saturating_sub(heard_ns) < ALIVE_NS
}

/// Whether all nodes that live have said what they hold of a block.
fn is_surveyed(block: &Block, now_ns: u64, common: &Common<'_>) -> bool {
    let mut others = common.others();
    others.all(|node| block.has_offer(node) || !is_alive(now_ns, common, node))
}

/// Checks a piece of a replica: its chunk, its form, its weights.
pub(super) fn check_piece(common: &Common<'_>, frame: &Frame<'_>) -> Result<(), DropReason> {
    let (header, nodes) = (&frame.header, common.config.nodes);
    if header.range >= nodes || !common.ranges.owns(header.range, header.chunk) {
        return Err(DropReason::Foreign);
    }
    if header.dtype != Dtype::F32 || frame.acks.len() != usize::from(nodes) {
        return Err(DropReason::Shape);
    }
    if kernels::any_non_finite(frame.payload) {
        return Err(DropReason::NonFinite);
    }
    Ok(())
}

/// The bits of all pieces that a chunk has.
pub(super) fn all_pieces(config: &Config) -> u8 {
    let pieces = 0..config.precision.f32_pieces();
    let there = pieces.filter(|piece| !config.piece(*piece).is_empty());
    there.fold(0, |all, piece| all | 1 << piece)
}
