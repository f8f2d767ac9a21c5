//! A slave that goes over to another master without having been asked by it first: what of its
//! delta under way that master knows.
//!
//! Who was surveyed by the next master, which says that it heard all answers, holds no later
//! position than that one began from, so acknowledgements tell. Who was not may have gone on with
//! the master before, for long: numbers are modulo 256, and one that fits may be chance. So it asks
//! which position the master began from, and the one before that in turn, until one began from what
//! this node holds, or from something older. If it is older, the two have gone apart: what is under
//! way goes back into `w - last`, and the master before brings what it had taken of it
//! ([`rejoin`](super::rejoin)).
//!
//! Invariant: until then no position of that master is taken.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING, SURE};
use super::epochs::{is_later, is_next, owner, same_reign};
use super::header::Given;
use super::pieces::send_list;
use super::take::put_back;
use super::{Outbox, header};
use crate::wire::{self, DropReason, Frame, Header};

/// What did not come is asked for again after this, ns.
const AGAIN_NS: u64 = 50_000_000;
/// Time between two looks, ns.
const LOOK_NS: u64 = 1_000_000;
/// Chunks that are asked for at a time.
const CHUNKS: usize = 256;

/// Chunks of which the beginning is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsure {
    asked: BTreeMap<u32, Doubt>,
    due_ns: u64,
}

/// What is known of how a chunk was begun.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// The present epoch.
    epoch: u32,
    /// The line of masters leads back to this epoch, whose master is asked: the present one first.
    of: u32,
    /// When it was asked, ns; 0: it was not.
    asked_ns: u64,
}

impl Doubt {
    fn of(epoch: u32) -> Self {
        Self {
            epoch,
            of: epoch,
            asked_ns: 0,
        }
    }
}

impl Common<'_> {
    /// Whether this node may take a position of another master of a chunk than before: nothing of
    /// its own is under way, or it knows how the chunk was begun.
    #[cold]
    pub(super) fn may_go_over(&mut self, header: &Header) -> bool {
        let flags = self.state.chunk(header.chunk).flags.load(Relaxed);
        // One that hears none may have asked, and begun without the answers; and one that this node
        // knows nothing of may have been the master in between.
        let held = self.state.chunk(header.chunk).epoch.load(Relaxed);
        let surveyed = self.leases[usize::from(header.range)].surveyed && header.seq != 0;
        let surveyed = surveyed && is_next(held, header.epoch);
        let sure = flags & (OUTSTANDING | SURE) != OUTSTANDING;
        if sure || surveyed || !self.exactly_once() {
            return true;
        }
        self.forks.unsure.insert(header.chunk);
        false
    }

    /// Whether this node has asked how another master began a chunk, and nothing of its own is
    /// under way: so its count need not be that of this master.
    #[cold]
    pub(super) fn knows_apart(&self, header: &Header) -> bool {
        let flags = self.state.chunk(header.chunk).flags.load(Relaxed);
        flags & (SURE | OUTSTANDING) == SURE
    }
}

impl Unsure {
    /// Asks how chunks were begun.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if !common.forks.unsure.is_empty() && now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS;
            self.ask(now_ns, common, out);
        }
    }

    #[cold]
    fn ask(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        let first = common.forks.unsure.iter().copied().take(CHUNKS);
        let first: Vec<u32> = first.collect();
        let is_unsure = |chunk: &u32| {
            let state = common.state.chunk(*chunk);
            let flags = state.flags.load(Relaxed) & (JOINED | OUTSTANDING | SURE);
            let master = owner(common.promised(common.ranges.range_of(*chunk)));
            let before = owner(state.epoch.load(Relaxed));
            flags == JOINED | OUTSTANDING && master != before && master != common.config.node
        };
        let (mut due, settled): (Vec<u32>, Vec<u32>) = first.into_iter().partition(is_unsure);
        for chunk in settled {
            self.settle(common, chunk);
        }
        due.retain(|chunk| self.is_due(now_ns, common, *chunk));
        while let Some(first) = due.first().copied() {
            let (range, node) = (common.ranges.range_of(first), owner(self.asked[&first].of));
            let same = |chunk: &u32| {
                common.ranges.has(range, *chunk) && owner(self.asked[chunk].of) == node
            };
            let list: Vec<u32> = due
                .iter()
                .copied()
                .filter(same)
                .take(wire::ASK_MAX)
                .collect();
            let epoch = common.promised(range);
            let header = header::ask(common, range, epoch, &list, header::BEGUN);
            if !send_list(node, &header, &list, out) {
                return;
            }
            due.retain(|chunk| !list.contains(chunk));
            let asked = self.asked.iter_mut();
            asked
                .filter(|(chunk, _)| list.contains(chunk))
                .for_each(|(_, doubt)| doubt.asked_ns = now_ns.max(1));
        }
    }

    /// Whether it is time to ask about a chunk. A master before that is silent is not asked: then
    /// acks have to tell.
    fn is_due(&mut self, now_ns: u64, common: &mut Common<'_>, chunk: u32) -> bool {
        let epoch = common.promised(common.ranges.range_of(chunk));
        let doubt = self.asked.entry(chunk).or_insert(Doubt::of(epoch));
        if doubt.epoch != epoch {
            *doubt = Doubt::of(epoch);
        }
        let doubt = *doubt;
        if doubt.of != epoch && !common.is_alive(now_ns, owner(doubt.of)) {
            common.state.chunk(chunk).flags.fetch_or(SURE, Relaxed);
            self.settle(common, chunk);
            return false;
        }
        doubt.asked_ns == 0 || now_ns.saturating_sub(doubt.asked_ns) >= AGAIN_NS
    }

    fn settle(&mut self, common: &mut Common<'_>, chunk: u32) {
        common.forks.unsure.remove(&chunk);
        self.asked.remove(&chunk);
    }

    /// Takes how a chunk was begun, from its master or one before.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let promised = common.promised(header.range);
        let doubt = self.asked.get_mut(&header.chunk);
        let doubt = doubt.filter(|doubt| doubt.epoch == promised);
        let doubt = doubt.filter(|doubt| owner(doubt.of) == header.sender);
        let doubt = doubt.ok_or(DropReason::Late)?;
        let state = common.state.chunk(header.chunk);
        let (epoch, version) = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        let told = header.content == Given::Begun.content();
        let further = is_later(header.epoch, epoch) && !same_reign(epoch, header.epoch);
        let before = owner(header.epoch);
        let is_other = before != common.config.node && before < common.config.places();
        if told && further && is_other && is_later(doubt.of, header.epoch) {
            (doubt.of, doubt.asked_ns) = (header.epoch, 0);
            self.due_ns = 0;
            return Ok(());
        }
        let older = (version.wrapping_sub(header.chunk_version) as i32) > 0;
        let apart = is_later(epoch, header.epoch) || epoch == header.epoch && older;
        if apart && told {
            common.keep_contested(header.chunk, promised);
            put_back(common, header, frame.acks[usize::from(common.config.node)]);
        }
        state.flags.fetch_or(SURE, Relaxed);
        self.settle(common, header.chunk);
        Ok(())
    }
}
