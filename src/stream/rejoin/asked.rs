//! A chunk that its node streamed, and is asked for: of whom, and what has come.

use std::sync::atomic::Ordering::Relaxed;

use super::super::begun::Link;
use super::super::common::chunk_flags::{SURE, WHOLE};
use super::super::common::{Common, note_taken};
use super::super::epochs::{are_of_one_reign, owner, same_reign};
use super::super::header::Given;
use super::super::kept::Base;
use super::LOST_NS;
use crate::weights::kernels;
use crate::wire::{Dtype, Frame};

/// Versions within which the number of a delta does not come again: each takes one at most.
const NUMBERS: u32 = 128;

/// A chunk that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) chunk: u32,
    /// The node that is asked now.
    pub(super) node: u16,
    /// Whose the base may be: this node's, or that of a node before it, where the two went apart
    /// then.
    pub(super) before: u16,
    /// Whether that is the node that gave this one the chunk.
    pub(super) gone_back: bool,
    /// Nodes that have no base.
    pub(super) without: Vec<u16>,
    pub(super) asked_ns: u64,
    pub(super) since_ns: u64,
    pub(super) began_ns: u64,
    /// Pieces that came, one bit each, of what is asked for.
    pub(super) pieces: u8,
    pub(super) came: Vec<f32>,
    /// The base, once it is there, and then with what is contested of it.
    pub(super) base: Option<Base>,
    /// The first base that came and may not be the one: it counts if no node has a better one.
    pub(super) perhaps: Option<Base>,
    /// Nodes that are still to be asked for what is contested, and of when.
    pub(super) others: Vec<(u16, Given)>,
    /// Those that did not say.
    pub(super) mute: Vec<(u16, Given)>,
    /// Acknowledgements of the base that came, where this node's own is older.
    pub(super) newer_acks: Vec<u8>,
}

impl Asked {
    /// Asks `node` for the base of a chunk, one of the node `before`.
    pub(super) fn new(
        now_ns: u64,
        common: &Common<'_>,
        chunk: u32,
        (node, before): (u16, u16),
    ) -> Self {
        Self {
            chunk,
            node,
            before,
            gone_back: false,
            without: Vec::new(),
            asked_ns: 0,
            since_ns: now_ns,
            began_ns: now_ns,
            pieces: 0,
            came: vec![0.0; common.config.chunk_weights as usize],
            base: None,
            perhaps: None,
            others: Vec::new(),
            mute: Vec::new(),
            newer_acks: Vec::new(),
        }
    }

    /// Asks the next node that may have the base. If none is left, what this node did apart is
    /// lost. `all_live`: no node that may have it is silent.
    pub(super) fn look_for_base(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        (range, all_live): (u16, bool),
    ) {
        if self.node == common.config.node {
            self.take_own(now_ns, common, range);
            return;
        }
        if common.is_alive(now_ns, self.node) && !self.without.contains(&self.node) {
            return;
        }
        let next = common
            .living(now_ns)
            .find(|node| !self.without.contains(node));
        if let Some(node) = next {
            self.node = node;
            (self.pieces, self.asked_ns, self.since_ns) = (0, 0, now_ns);
            return;
        }
        let waited = now_ns.saturating_sub(self.began_ns) >= LOST_NS;
        if !all_live && !waited {
            return;
        }
        if let Some(base) = self.perhaps.take() {
            self.take_or_wait(now_ns, common, (base, false));
        } else if !self.looks_further_back(now_ns, common) {
            common.forget_half(self.chunk);
            common.state.chunk(self.chunk).flags.store(0, Relaxed);
            common.forks.forget_parting(self.chunk);
            common.leases[usize::from(range)].forked_chunks -= 1;
            common.note_abandoned(range, 1);
        }
    }

    /// The base is the position that this node took the chunk over at. What its master did until
    /// then, that one brings: it is waited for. If it does not, that is lost, unless the present
    /// master began from an older position of it: then this node brings it.
    fn take_own(&mut self, now_ns: u64, common: &mut Common<'_>, range: u16) {
        let Some(base) = common.own_base(self.chunk).cloned() else {
            // It is as if none was known.
            common.forks.parted.remove(&self.chunk);
            self.node = owner(common.promised(range));
            return;
        };
        let master = owner(base.epoch);
        let lives = common.is_alive(now_ns, master);
        let waited = now_ns.saturating_sub(self.began_ns) >= LOST_NS;
        let older = self.perhaps.take();
        let left = older.is_some() && base.by != master;
        if !lives && !waited && !left {
            self.perhaps = older;
            return;
        }
        if let Some(older) = older.filter(|_| left || !lives) {
            self.take_base(now_ns, common, (older, false));
            if !left {
                // It may be back, and bring it too.
                common.note_doubled(master);
            }
            return;
        }
        self.before = common.config.node;
        self.take_base(now_ns, common, (base, false));
        common.note_abandoned(range, u32::from(!lives));
    }

    /// Takes the base that came. But this node may have taken the chunk over at a later position of
    /// the same master: what that did in between it may bring by itself, unless it lost its memory,
    /// and began from there.
    fn take_or_wait(&mut self, now_ns: u64, common: &Common<'_>, (came, went_on): (Base, bool)) {
        let own = common.own_base(self.chunk);
        let own = own.filter(|_| !went_on && self.node != owner(came.epoch));
        let is_later = |own: &Base| are_of_one_reign(own.epoch, came.epoch) && own.is_later(&came);
        if own.is_some_and(is_later) {
            self.perhaps = Some(came);
            self.node = common.config.node;
        } else {
            self.take_base(now_ns, common, (came, went_on));
        }
    }

    /// No node has gone apart from this one: then from the node that gave this one the chunk. True:
    /// that one was not asked for yet.
    fn looks_further_back(&mut self, now_ns: u64, common: &Common<'_>) -> bool {
        let given = common.begun(self.chunk).map(|begun| owner(begun.0));
        let Some(given) = given.filter(|given| *given != self.before && !self.gone_back) else {
            return false;
        };
        (self.before, self.gone_back) = (given, true);
        self.without.clear();
        self.began_ns = now_ns;
        true
    }

    /// What is asked for now.
    pub(super) fn wanted(&self) -> Given {
        let first = self.others.first();
        first.map_or(Given::Base(self.before as u8), |(_, given)| *given)
    }

    /// The position that came, with the acknowledgements of its last frame.
    pub(super) fn came_as_base(&self, frame: &Frame<'_>) -> Base {
        Base {
            epoch: frame.header.epoch,
            version: frame.header.chunk_version,
            acks: frame.acks.to_vec(),
            weights: self.came.clone(),
            by: owner(frame.header.epoch),
            back_ns: 0,
        }
    }

    /// A base came. If the line of masters is known, the one of where it went apart from this node
    /// counts; else one of this node's own reign. Another counts only if no node has that: it may
    /// be from long ago, or of a line that has ended.
    pub(super) fn weigh_base(&mut self, now_ns: u64, common: &Common<'_>, frame: &Frame<'_>) {
        let came = self.came_as_base(frame);
        let is_of = |link: &Link| self.node == link.by && are_of_one_reign(link.epoch, came.epoch);
        let parted = common.forks.parted.get(&self.chunk);
        let of_last_reign = || common.is_of_last_reign(self.chunk, came.epoch);
        if parted.map_or_else(of_last_reign, is_of) {
            let went_on = frame.header.dtype == Dtype::None
                && common.has_gone_on(self.chunk, self.node, came.epoch);
            self.take_or_wait(now_ns, common, (came, went_on));
        } else {
            if frame.header.dtype != Dtype::None {
                self.perhaps.get_or_insert(came);
            }
            self.without.push(self.node);
        }
    }

    /// The base is there: what is contested of it comes next. `went_on`: it is what its master had
    /// when that went on by itself.
    fn take_base(&mut self, now_ns: u64, common: &Common<'_>, (came, went_on): (Base, bool)) {
        // Of two nodes that took a range over apart, the one that had the older position counts.
        // That of a master which went on is later than any other.
        let before = owner(came.epoch);
        let own = common.forks.bases_of(self.chunk, &[before]).next();
        let own = own.filter(|_| before != common.config.node);
        let own = own.filter(|own| went_on || !own.is_later(&came)).cloned();
        let newer = own.as_ref().map(|_| came.acks.clone());
        let mut base = own.unwrap_or(came);
        self.others = self.applied_since(common, &base.acks, base.version);
        if let Some(newer) = newer {
            // What the master before had taken after this node's base is with the present one. What
            // of that came to this node too is in both.
            let former = Given::Former(owner(base.epoch) as u8);
            let is_newer = |node: u16| newer[usize::from(node)] != base.acks[usize::from(node)];
            let applied = common.state.applied(self.chunk);
            let applied = |node: u16| applied[usize::from(node)].load(Relaxed);
            let differs = |node: &u16| applied(*node) != base.acks[usize::from(*node)];
            let both = common
                .others()
                .filter(|node| is_newer(*node) && differs(node));
            self.others.extend(both.map(|node| (node, former)));
            let own = common.config.node;
            let sent = common.forks.contested(self.chunk, own, (former, 0));
            let is_newest = |seq: u8| seq == newer[usize::from(own)];
            if let Some(sent) = sent.filter(|sent| is_newest(sent.seq))
                && same_reign(base.epoch, sent.epoch)
            {
                base.add(&sent.weights);
            }
            self.newer_acks = newer;
        }
        self.base = Some(base);
        self.mute.clear();
        self.ask_first(now_ns);
    }

    /// The nodes of which this one may have applied another delta than the position of `version`
    /// acknowledges, and what they are asked for.
    fn applied_since(&self, common: &Common<'_>, acks: &[u8], version: u32) -> Vec<(u16, Given)> {
        let applied = common
            .state
            .applied(self.chunk)
            .iter()
            .map(|ack| ack.load(Relaxed));
        let differ: Vec<bool> = applied
            .zip(acks)
            .map(|(applied, ack)| applied != *ack)
            .collect();
        // After as many versions numbers may have come around.
        let newest = common.state.chunk(self.chunk).version.load(Relaxed);
        let many = newest.wrapping_sub(version) >= NUMBERS;
        let heard = |node: u16| common.peers[usize::from(node)].heard_ns != 0;
        let others = common.others();
        let asked = others.filter(|node| differ[usize::from(*node)] || many && heard(*node));
        let given = Given::Contested(self.before as u8);
        asked.map(|node| (node, given)).collect()
    }

    /// A node gave this one what it streamed last, and brings it by itself, or another one does.
    /// Then it is in the weights of both who went apart, with all deltas that it acknowledges.
    fn take_given(&mut self, now_ns: u64, common: &Common<'_>, frame: &Frame<'_>) {
        let given = self.came_as_base(frame);
        let begun = common.begun(self.chunk);
        if let Some(base) = &mut self.base
            && begun == Some((given.epoch, given.version))
            && given.is_later(base)
        {
            base.weights = given.weights;
            self.mute.clear();
            self.others = self.applied_since(common, &given.acks, given.version);
            self.others.retain(|(node, _)| *node != frame.header.sender);
            self.ask_first(now_ns);
        } else {
            self.next(now_ns);
        }
    }

    pub(super) fn take_contested(
        &mut self,
        now_ns: u64,
        common: &Common<'_>,
        frame: &Frame<'_>,
        nothing: bool,
    ) {
        // A delta never went to its own sender.
        if !nothing && owner(frame.header.epoch) == self.node {
            self.take_given(now_ns, common, frame);
            return;
        }
        let node = usize::from(self.node);
        let (epoch, seq) = (frame.header.epoch, frame.header.seq);
        let applied = common.state.applied(self.chunk)[node].load(Relaxed);
        let wanted = self.wanted();
        if let Some(base) = &mut self.base
            && !nothing
        {
            let of_base = same_reign(base.epoch, epoch);
            // Another number: this node never had it. Of a former reign: that is in the base.
            let is_in_both = match wanted {
                Given::Former(_) => of_base && seq == self.newer_acks[node],
                _ => seq == applied && (of_base || common.is_of_last_reign(self.chunk, epoch)),
            };
            if is_in_both {
                base.add(&self.came);
            }
        }
        self.next(now_ns);
    }

    /// Asks the next one.
    pub(super) fn next(&mut self, now_ns: u64) {
        self.others.remove(0);
        self.ask_first(now_ns);
    }

    fn ask_first(&mut self, now_ns: u64) {
        (self.pieces, self.asked_ns, self.since_ns) = (0, 0, now_ns);
        self.node = self.others.first().map_or(self.node, |(node, _)| *node);
    }

    pub(super) fn join(&self, common: &mut Common<'_>, range: u16) {
        let Some(base) = &self.base else {
            return;
        };
        common.keep_for_unheard(self.chunk);
        let (_, last, _) = common.chunk_views(self.chunk);
        kernels::copy_in(last, &base.weights);
        let mut mute = Vec::new();
        for (node, given) in &self.mute {
            match given {
                // That is not asked for again.
                Given::Former(_) => common.note_doubled(*node),
                _ => mute.push(*node),
            }
        }
        // Since its own base this node was the master itself.
        let own = self.before == common.config.node && owner(base.epoch) != self.before;
        common.owe_all(self.chunk, if own { 0 } else { base.epoch }, &mute);
        common.owe_half(self.chunk);
        let applied = common.state.applied(self.chunk);
        for (kept, ack) in applied.iter().zip(&base.acks) {
            kept.store(*ack, Relaxed);
        }
        let state = common.state.chunk(self.chunk);
        state.epoch.store(base.epoch, Relaxed);
        let ack = base.acks[usize::from(common.config.node)];
        note_taken(state, base.version, Some(ack), false);
        state.flags.fetch_or(SURE | WHOLE, Relaxed);
        common.forks.forget_parting(self.chunk);
        let lease = &mut common.leases[usize::from(range)];
        lease.forked_chunks -= 1;
        lease.joined_chunks += 1;
        common.counters.forks_joined += 1;
    }
}
