//! Leaving: what a node does before it ends, so that nothing of it is left behind, and what others
//! make of it.
//!
//! A node that leaves says so in its hellos. Others take its ranges ([`balance`](super::balance)),
//! with its newest weights. It answers positions until each chunk is as its master streams it, with
//! nothing under way. What it keeps of a fork, for a node that is silent, keeps it too. Then it
//! says that it is gone, so that no node waits for it or looks for it.
//!
//! Invariant: it ends by itself only with nothing of its own under way to a master that lives.
//! Solvers of its buffer must have stopped; what they add meanwhile is waited for too.

use std::sync::atomic::Ordering::Relaxed;

use super::Report;
use super::common::Common;
use super::common::chunk_flags::{FORKED, OUTSTANDING};
use crate::wire::{NodeSeen, Stay};

/// Hellos that say that this node is gone.
const GOODBYES: u32 = 4;
/// Chunks that are looked at in one turn.
const LOOKED_AT: u32 = 64;

/// How far a node that leaves is.
#[derive(Clone, Debug, Default)]
pub(super) struct Leave {
    /// Chunks before this one had nothing under way.
    clean: u32,
    /// Nothing was left to deliver when it went.
    delivered: bool,
    goodbyes: u32,
}

impl Leave {
    /// Looks whether this node may go, if it leaves.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>) {
        if common.leaves() {
            self.poll_leaving(now_ns, common);
        }
    }

    #[cold]
    fn poll_leaving(&mut self, now_ns: u64, common: &mut Common<'_>) {
        if common.stay() == Stay::Leaves && !common.has_heirs(now_ns) {
            // Ranges stay with the last one; the files remember all.
            common.set_stay(Stay::Gone);
        } else if common.stay() == Stay::Leaves && common.streamed_ranges().next().is_none() {
            let end = common.config.chunks.min(self.clean + LOOKED_AT);
            let under_way = (self.clean..end).find(|chunk| common.is_under_way(now_ns, *chunk));
            self.clean = under_way.unwrap_or(end);
            if self.clean == common.config.chunks && !common.keeps_for_silent(now_ns) {
                self.delivered = true;
                common.set_stay(Stay::Gone);
            }
        }
    }

    /// Notes that a hello went.
    pub(super) fn note_hello(&mut self, common: &Common<'_>) {
        self.goodbyes += u32::from(common.stay() == Stay::Gone);
    }

    /// Whether it left with all that it had on other nodes.
    pub(super) fn has_delivered(&self) -> bool {
        self.delivered
    }

    /// Whether all others were told that this node is gone.
    pub(super) fn has_gone(&self) -> bool {
        self.goodbyes >= GOODBYES
    }
}

impl Common<'_> {
    /// Whether this node leaves, or is gone.
    #[inline]
    pub(super) fn leaves(&self) -> bool {
        self.stay() != Stay::Stays
    }

    /// Whether another node leaves, or is gone: it takes no ranges, and those it has go to others.
    pub(super) fn gives_up(&self, node: u16) -> bool {
        self.peers[usize::from(node)].stay != Stay::Stays
    }

    /// The other nodes of the job: those that it begins with and those that were heard, but for
    /// those that have left.
    pub(super) fn members(&self) -> impl Iterator<Item = u16> {
        self.others().filter(|node| {
            let peer = &self.peers[usize::from(*node)];
            peer.stay != Stay::Gone && (*node < self.config.nodes || peer.heard_ns != 0)
        })
    }

    /// Takes what a node's hello says of whether it stays.
    pub(super) fn hear_stay(&mut self, node: u16, stay: Stay) {
        let peer = &mut self.peers[usize::from(node)];
        let before = std::mem::replace(&mut peer.stay, stay);
        let first = peer.heard_ns == 0 && node >= self.config.nodes;
        if stay == Stay::Gone && before != stay {
            self.report(Report::Left { node });
        } else if stay == Stay::Stays && (first || before == Stay::Gone) {
            self.report(Report::Joined { node });
            self.tell_soon = true;
        }
    }

    /// Whether `node` has left, as far as known here.
    pub(super) fn is_gone(&self, node: u16) -> bool {
        self.peers[usize::from(node)].stay == Stay::Gone
    }

    /// Takes what another node says of `node`: this one may have missed all that it said itself.
    pub(super) fn hear_of_gone(&mut self, now_ns: u64, node: u16, told: NodeSeen) {
        let another = node != self.config.node && !self.is_gone(node);
        if told.gone && another && !self.is_alive(now_ns, node) {
            self.hear_stay(node, Stay::Gone);
        }
    }

    /// Whether a living node may take the ranges of this one.
    fn has_heirs(&self, now_ns: u64) -> bool {
        let takes = |node: u16| self.config.is_master(node) && !self.gives_up(node);
        self.living(now_ns).any(takes)
    }

    /// Whether a silent node may come back and need what only this one keeps of a fork.
    fn keeps_for_silent(&self, now_ns: u64) -> bool {
        let silent = |node: u16| {
            let heard = self.peers[usize::from(node)].heard_ns != 0;
            heard && !self.is_alive(now_ns, node)
        };
        self.forks.keeps_any() && self.members().any(silent)
    }

    /// Whether a living master lacks something of what this node did to a chunk.
    fn is_under_way(&self, now_ns: u64, chunk: u32) -> bool {
        let Some(master) = self.owner(self.ranges.range_of(chunk)) else {
            return false;
        };
        if !self.is_alive(now_ns, master) {
            return false;
        }
        let flags = self.state.chunk(chunk).flags.load(Relaxed);
        let outstanding = flags & OUTSTANDING != 0 && self.exactly_once();
        flags & FORKED != 0 || outstanding || self.has_new(chunk)
    }

    /// Whether solvers added something to a chunk that was not sent.
    pub(super) fn has_new(&self, chunk: u32) -> bool {
        let (w, last, _) = self.chunk_views(chunk);
        (0..w.len()).any(|i| w.load(i).to_bits() != last.load(i).to_bits())
    }
}
