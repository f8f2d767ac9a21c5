//! A restore that is going on: which node holds the newest position of each chunk of a range, and
//! the chunks that came.
//!
//! Two windows go over the range: blocks that are surveyed, and behind them chunks that are pulled.
//! How many of those may be on the way is the affair of all ranges
//! ([`pull_window`](super::pull_window)). What gets lost is asked for again; who falls silent is
//! asked no more.

mod chunk;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use self::chunk::{Newest, Own};
use super::common::Common;
use super::pieces::{all_pieces, pieces_of, send_list, take_newest};
use super::pull_window::PullWindow;
use super::{Outbox, To, header};
use crate::wire::{self, DropReason, Frame};

/// A node that was silent for so long is given up: what only it holds begins anew, ns.
const LOST_NS: u64 = 30_000_000_000;
/// What is not answered is asked again after this, ns; a chunk after twice the longest time that
/// one took to come.
const AGAIN_NS: u64 = 50_000_000;
/// Time between two looks at what is to be asked, unless something comes, ns.
const POLL_NS: u64 = 1_000_000;
/// A node that was asked so often for a chunk without sending it may not hold it any more.
const TRIES: u8 = 8;
/// Blocks that are surveyed at a time.
const BLOCKS: usize = 32;
/// A chunk that was asked for so many chunks before one that came is lost, or its ask is.
const OVERTAKEN: u32 = 16;

/// What is known of a block of chunks of the range.
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

/// A restore that is going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Going {
    pub(super) range: u16,
    /// The epoch that it will stream in.
    pub(super) epoch: u32,
    blocks: Vec<Block>,
    chunks: Vec<Own>,
    /// Blocks and chunks before these are done.
    surveyed: usize,
    pulled: usize,
    /// Chunks that were asked for and have not come.
    waiting: usize,
    /// Per node, chunks that it was asked for, and the latest of them that came.
    asked: Vec<u32>,
    came: Vec<u32>,
    came_ns: u64,
    /// The longest time that a chunk took to come, ns; 0: none has.
    slowest_ns: u64,
    /// Chunks that no node holds.
    pub(super) missing: u32,
    /// Chunks that this node streamed before, and did things to that are lost.
    pub(super) abandoned: u32,
    due_ns: u64,
    /// When the first of the others told what it holds, ns.
    told_ns: u64,
    /// Nodes of the epochs that this one comes after.
    pub(super) rivals: Vec<u16>,
    /// The epoch turned out to be known to another node.
    pub(super) stale: bool,
}

impl Going {
    pub(super) fn new(common: &Common<'_>, range: u16, (told_ns, rivals): (u64, Vec<u16>)) -> Self {
        let (chunks, nodes) = (common.ranges.of(range), usize::from(common.config.places()));
        Self {
            range,
            epoch: common.promised(range),
            told_ns,
            rivals,
            blocks: vec![Block::default(); chunks.len().div_ceil(wire::BLOCK_CHUNKS as usize)],
            chunks: chunks.map(|chunk| Own::held_here(common, chunk)).collect(),
            asked: vec![0; nodes],
            came: vec![0; nodes],
            ..Self::default()
        }
    }

    /// Since when others have told what they hold, ns.
    pub(super) fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Whether a chunk comes from `node`, which streamed it last: then that has not forked.
    pub(super) fn is_from(&self, at: usize, node: u16) -> bool {
        self.chunks[at]
            .newest
            .is_some_and(|newest| newest.node == node)
    }

    /// Whether another node than `before` and this one was to stream the range.
    pub(super) fn has_rivals(&self, before: u16) -> bool {
        self.rivals.iter().any(|rival| *rival != before)
    }

    /// Whether all members have said what they hold, but for the masters `before`: what those did
    /// since, they bring themselves.
    pub(super) fn heard_all(&self, common: &Common<'_>, before: &BTreeSet<u16>) -> bool {
        let all = |node: u16| self.blocks.iter().all(|block| block.has_offer(node));
        let mut others = common.members().filter(|node| !before.contains(node));
        others.all(all)
    }

    /// Frames that were asked for and have not come.
    pub(super) fn on_the_way(&self, common: &Common<'_>) -> usize {
        self.waiting * frames_of_a_chunk(common)
    }

    /// Asks for what comes next, as far as there is room. True: all is there.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        (window, room): (&mut PullWindow, &mut usize),
        out: &mut impl Outbox,
    ) -> bool {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + POLL_NS;
            self.survey(now_ns, common, out);
            self.pull(now_ns, common, (window, room), out);
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
        let first = common.ranges.of(self.range).start;
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
            let header = header::survey(common, self.range, chunk, self.epoch);
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
    fn pull(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        (window, room): (&mut PullWindow, &mut usize),
        out: &mut impl Outbox,
    ) {
        let surveyed = self.surveyed * wire::BLOCK_CHUNKS as usize;
        let end = surveyed.min(self.chunks.len());
        let mut lists: Vec<(u16, Vec<u32>)> = Vec::new();
        let frames = frames_of_a_chunk(common);
        for at in self.pulled..end {
            if self.chunks[at].done {
                if at == self.pulled {
                    self.pulled += 1;
                }
                continue;
            }
            match self.chunks[at].newest {
                None if self.may_begin_new(now_ns, common) => self.begin_new(at),
                None => {
                    self.survey_again(common, at);
                    break;
                }
                Some(newest) if newest.node == common.config.node => {
                    self.chunks[at].done = true;
                }
                Some(newest)
                    if !common.is_alive(now_ns, newest.node) || self.chunks[at].tries > TRIES =>
                {
                    self.survey_again(common, at);
                    break;
                }
                Some(newest) if self.chunks[at].asked_ns == 0 => {
                    if *room < frames {
                        break;
                    }
                    *room -= frames;
                    note(&mut lists, newest.node, at as u32);
                }
                Some(newest) => {
                    if self.is_due(now_ns, at, newest.node) {
                        window.note_lost(now_ns, self.chunks[at].asked_ns);
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
        let mut others = common.members();
        others.all(|node| common.is_alive(now_ns, node) || lost(node))
    }

    /// No living node holds the chunk: it begins with the initial weights.
    fn begin_new(&mut self, at: usize) {
        self.chunks[at].done = true;
        self.missing += 1;
    }

    /// The node that held the chunk is silent or does not hold it any more: others may.
    fn survey_again(&mut self, common: &Common<'_>, at: usize) {
        let block = at / wire::BLOCK_CHUNKS as usize;
        self.blocks[block] = Block::default();
        self.surveyed = self.surveyed.min(block);
        let first = block * wire::BLOCK_CHUNKS as usize;
        let end = self.chunks.len().min(first + wire::BLOCK_CHUNKS as usize);
        let start = common.ranges.of(self.range).start;
        let chunks = self.chunks[first..end]
            .iter_mut()
            .zip(start + first as u32..);
        for (one, chunk) in chunks.filter(|(one, _)| !one.done) {
            self.waiting -= usize::from(one.asked_ns != 0);
            *one = Own::held_here(common, chunk);
        }
    }

    fn is_due(&self, now_ns: u64, at: usize, node: u16) -> bool {
        let chunk = &self.chunks[at];
        let came = self.came[usize::from(node)];
        let overtaken = came.saturating_sub(chunk.order) > OVERTAKEN;
        let patience_ns = match self.slowest_ns {
            0 => AGAIN_NS,
            slowest_ns => 2 * slowest_ns.clamp(AGAIN_NS / 4, 10 * AGAIN_NS),
        };
        let idle = now_ns.saturating_sub(chunk.asked_ns.max(self.came_ns)) > patience_ns;
        overtaken || idle
    }

    fn ask_for(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        node: u16,
        list: &[u32],
        out: &mut impl Outbox,
    ) {
        let first = common.ranges.of(self.range).start;
        for list in list.chunks(wire::ASK_MAX) {
            let chunks: Vec<u32> = list.iter().map(|own| first + own).collect();
            let header = header::ask(common, self.range, self.epoch, &chunks, header::LIST);
            if !send_list(node, &header, &chunks, out) {
                return;
            }
            for own in list {
                let asked = &mut self.asked[usize::from(node)];
                *asked += 1;
                let chunk = &mut self.chunks[*own as usize];
                self.waiting += usize::from(chunk.asked_ns == 0);
                (chunk.asked_ns, chunk.order) = (now_ns.max(1), *asked);
                chunk.tries = chunk.tries.saturating_add(1);
            }
        }
    }

    /// Takes a piece of chunk `at` of the range.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        window: &mut PullWindow,
        at: usize,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let own = &mut self.chunks[at];
        let wanted = own.newest.is_some_and(|newest| {
            newest.node == header.sender
                && (newest.epoch, newest.version) == (header.epoch, header.chunk_version)
        });
        if own.done || own.asked_ns == 0 || !wanted {
            return Err(DropReason::Late);
        }
        let weights = common.config.restored(header);
        own.bytes
            .resize(4 * common.config.chunk_weights as usize, 0);
        own.bytes[4 * weights.start..4 * weights.end].copy_from_slice(frame.payload);
        own.pieces |= pieces_of(&common.config, header);
        let came = &mut self.came[usize::from(header.sender)];
        *came = (*came).max(own.order);
        self.came_ns = now_ns;
        self.slowest_ns = self.slowest_ns.max(now_ns.saturating_sub(own.asked_ns));
        common.counters.restores_taken += 1;
        if own.pieces == all_pieces(&common.config) {
            own.done = true;
            self.waiting -= 1;
            window.note_came(now_ns, own.asked_ns, frames_of_a_chunk(common));
            let bytes = std::mem::take(&mut own.bytes);
            self.abandoned += u32::from(take_newest(common, frame, &bytes));
        }
        // More may be asked for.
        self.due_ns = 0;
        Ok(())
    }
}

/// Pieces that a chunk is sent in.
fn frames_of_a_chunk(common: &Common<'_>) -> usize {
    all_pieces(&common.config).count_ones() as usize
}

fn note(lists: &mut Vec<(u16, Vec<u32>)>, node: u16, own: u32) {
    match lists.iter_mut().find(|(of, _)| *of == node) {
        Some((_, list)) => list.push(own),
        None => lists.push((node, vec![own])),
    }
}

/// Whether all nodes that live have said what they hold of a block.
fn is_surveyed(block: &Block, now_ns: u64, common: &Common<'_>) -> bool {
    let mut living = common.living(now_ns);
    living.all(|node| block.has_offer(node))
}
