//! Leaving: what a node does before it ends, so that nothing of it is left behind, and what others
//! make of it.
//!
//! A node that leaves says so in its hellos. Others take its ranges ([`balance`](super::balance)),
//! with its newest weights. It answers positions until each chunk is as its master streams it, with
//! nothing under way. What it keeps of a fork, for a node that is silent, keeps it too, and so does
//! what it owes ([`owed`](super::owed)). Then it says that it is gone, so that no node waits for it
//! or looks for it.
//!
//! Invariant: it ends by itself only with nothing of its own under way, unless no node is there to
//! take it. Solvers of its buffer must have stopped; what they add meanwhile is waited for too.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{FORKED, OUTSTANDING};
use super::remains::{Nearer, Remains};
use super::{Report, Streamer};
use crate::wire::{NodeSeen, Stay};

/// Hellos that say that this node is gone.
const GOODBYES: u32 = 4;
/// Chunks that are looked at in one turn.
const LOOKED_AT: u32 = 64;

/// Positions of a chunk that may still bring this node nearer to its end: a delta that one brings
/// forth and the next confirms, and one that gets lost.
const POSITIONS: u8 = 3;

/// A node that was silent may ask for so many times the shortest silence what only this one keeps.
/// (A node that leaves gives up after 20.)
const BACK: u64 = 16;

/// A chunk that had something under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) chunk: u32,
    /// The version that it then held.
    version: u32,
    positions: u8,
}

/// How far a node that leaves is.
#[derive(Clone, Debug, Default)]
pub(super) struct Leave {
    /// Chunks before this one were looked at.
    seen: u32,
    /// Those of them that had something under way when they were looked at last.
    under_way: VecDeque<UnderWay>,
    /// Positions of them that came, but for those beyond [`POSITIONS`] of a chunk.
    positions: usize,
    /// Something was owed when it was looked at last.
    owed: bool,
    /// Nothing was left to deliver when it went.
    delivered: bool,
    goodbyes: u32,
    nearer: Nearer,
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
        common.look_for_silent(now_ns);
        if common.stay() == Stay::Leaves && common.stays_alone(now_ns) {
            // Ranges stay with the last one; the files remember all.
            common.set_stay(Stay::Gone);
        } else if common.stay() == Stay::Leaves && common.streamed_ranges().next().is_none() {
            self.look_at_debts(common);
            self.look(common);
            let all_seen = self.seen == common.config.chunks && !self.owed;
            if all_seen && self.under_way.is_empty() && common.kept_for(now_ns).is_empty() {
                self.delivered = true;
                common.set_stay(Stay::Gone);
            }
        }
        let left = (common.config.chunks - self.seen) as usize + self.under_way.len();
        let further = self.positions + self.goodbyes as usize;
        self.nearer.poll(now_ns, common, left, further);
    }

    /// What was owed and was taken out is to leave as a delta: all chunks are looked at once more.
    /// A node that streams nothing owes nothing new, so that this ends.
    fn look_at_debts(&mut self, common: &Common<'_>) {
        let before = std::mem::replace(&mut self.owed, common.owed_to().next().is_some());
        if before && !self.owed {
            self.seen = 0;
            self.under_way.clear();
            self.nearer = Nearer::default();
        }
    }

    /// Looks at the next chunks, and again at those that had something under way.
    fn look(&mut self, common: &Common<'_>) {
        for _ in 0..self.under_way.len().min(LOOKED_AT as usize) {
            let again = self.under_way.pop_front();
            let again = again.filter(|one| common.is_under_way(one.chunk));
            let again = again.map(|one| self.look_again(one, common));
            self.under_way.extend(again);
        }
        let end = common.config.chunks.min(self.seen + LOOKED_AT);
        let under_way = (self.seen..end).filter(|chunk| common.is_under_way(*chunk));
        self.under_way.extend(under_way.map(|chunk| UnderWay {
            chunk,
            version: common.state.chunk(chunk).version.load(Relaxed),
            positions: 0,
        }));
        self.seen = end;
    }

    /// A pass of a master over a thin link may take longer than the patience: each chunk waits for
    /// its own positions.
    fn look_again(&mut self, mut one: UnderWay, common: &Common<'_>) -> UnderWay {
        let version = common.state.chunk(one.chunk).version.load(Relaxed);
        if version != one.version && one.positions < POSITIONS {
            one.positions += 1;
            self.positions += 1;
        }
        UnderWay { version, ..one }
    }

    /// What is left to do before this node may go.
    pub(super) fn remains(&self, now_ns: u64, common: &Common<'_>) -> Remains {
        Remains::of(now_ns, common, &self.under_way)
    }

    /// Whether this node got no nearer to its end for so long that it never may.
    pub(super) fn has_stalled(&self, common: &Common<'_>) -> bool {
        self.nearer.has_stalled(common)
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

    /// The same with those that living nodes tell of, for a streamer that started while they were
    /// silent.
    pub(super) fn known(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        let tells = move |by: u16, of: u16| {
            let told = self.told(by, of);
            told.is_some_and(|told| told.life != 0 && !told.gone)
        };
        let is_told = move |node: u16| {
            let stays = !self.is_gone(node);
            stays && self.living(now_ns).any(|by| tells(by, node))
        };
        let members: BTreeSet<u16> = self.members().collect();
        self.others()
            .filter(move |node| members.contains(node) || is_told(*node))
    }

    /// Whether all that live have told this life of all others, in hellos: it may have heard their
    /// positions alone.
    pub(super) fn all_have_told(&self, now_ns: u64) -> bool {
        let has_told = |by: u16| self.peers[usize::from(by)].told.iter().all(Option::is_some);
        self.living(now_ns).all(has_told)
    }

    /// Takes what a node's hello says of whether it stays.
    pub(super) fn hear_stay(&mut self, now_ns: u64, node: u16, stay: Stay) {
        let before = self.peers[usize::from(node)].stay;
        let mut ranges = 0..self.config.places();
        let leaves = stay == Stay::Gone && before != stay;
        let took_all = leaves && ranges.any(|range| self.owner(range) == Some(node));
        let peer = &mut self.peers[usize::from(node)];
        peer.stay = stay;
        if before != stay {
            peer.left_with_ranges_ns = if took_all { now_ns.max(1) } else { 0 };
        }
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
            self.hear_stay(now_ns, node, Stay::Gone);
        }
    }

    /// Whether a living node may take the ranges of this one.
    fn has_heirs(&self, now_ns: u64) -> bool {
        let takes = |node: u16| self.config.is_master(node) && !self.gives_up(node);
        self.living(now_ns).any(takes)
    }

    /// Whether no living node may take what this one has, and none is worth waiting for: what a
    /// slave has under way only a master can take, and that may be heard again.
    fn stays_alone(&self, now_ns: u64) -> bool {
        let is_master = |node: u16| self.config.is_master(node);
        let waits = !is_master(self.config.node) && self.silent(now_ns).any(is_master);
        !waits && !self.has_heirs(now_ns)
    }

    /// Nodes of the job that have yet to say which of their deltas are in weights of two.
    pub(super) fn owed_to(&self) -> impl Iterator<Item = u16> {
        let mut nodes: Vec<u16> = self.forks.owed().keys().map(|key| key.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().filter(|node| !self.is_gone(*node))
    }

    /// Nodes that may need what only this one keeps of a fork: silent ones, and those of bases and
    /// contested deltas while they may still ask. Who was silent hears a position of a chunk before
    /// it does.
    pub(super) fn kept_for(&self, now_ns: u64) -> Vec<u16> {
        if !self.forks.keeps_any() {
            return Vec::new();
        }
        let mut nodes: Vec<u16> = self.silent(now_ns).collect();
        if self.forks.was_silent(now_ns, BACK * self.config.silence_ns) {
            let masters = self.forks.of_bases().chain(self.forks.of_contested());
            let others = masters.filter(|node| *node != self.config.node);
            nodes.extend(others.filter(|node| !self.is_gone(*node)));
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Members that were heard, and are not any more.
    pub(super) fn silent(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        let heard = |node: &u16| self.peers[usize::from(*node)].heard_ns != 0;
        self.members()
            .filter(heard)
            .filter(move |node| !self.is_alive(now_ns, *node))
    }

    /// Whether the master of a chunk lacks something of what this node did to it. If it is silent,
    /// another will stream the chunk, and lack it too.
    fn is_under_way(&self, chunk: u32) -> bool {
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

impl Streamer<'_> {
    /// Begins to leave: gives its ranges to other nodes, and has all that was added to its buffer
    /// delivered. Solvers must have stopped.
    pub fn leave(&mut self) {
        if !self.common.leaves() {
            self.common.set_stay(Stay::Leaves);
        }
    }

    /// Whether it left because all that was added to its buffer is with other nodes, and not
    /// because there is no other.
    pub fn has_delivered(&self) -> bool {
        self.leave.has_delivered()
    }

    /// What is left to do before a node that leaves may go.
    pub fn remains(&self, now_ns: u64) -> Remains {
        self.leave.remains(now_ns, &self.common)
    }

    /// Whether a node that leaves has come no nearer to its end for twenty times the shortest
    /// silence: it may as well end with what it has.
    pub fn has_stalled(&self) -> bool {
        self.leave.has_stalled(&self.common)
    }

    /// Whether this node has left: nothing more is to be sent. A node without others, to which
    /// nothing can be given, leaves at once.
    pub fn has_left(&self) -> bool {
        self.common.config.places() == 1 && self.common.leaves() || self.leave.has_gone()
    }
}
