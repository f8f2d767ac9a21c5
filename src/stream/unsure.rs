//! A slave that goes over to another master without having been asked by it first: what of its
//! delta under way that master knows.
//!
//! Who was surveyed by the next master holds no later position than that one began from, so
//! acknowledgements tell. Who was not may have gone on with the master before, for long: numbers
//! are modulo 256, and one that fits may be chance. So it asks which position the master began
//! from. If that is older than what this node holds, the two have gone apart: what is under way
//! goes back into `w - last`, and the master before brings what it had taken of it
//! ([`rejoin`](super::rejoin)).
//!
//! Invariant: until then no position of that master is taken.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{JOINED, OUTSTANDING, SURE};
use super::epochs::{is_later, owner};
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
    /// When, ns.
    asked: BTreeMap<u32, u64>,
    due_ns: u64,
}

impl Common<'_> {
    /// Whether this node may take a position of another master of a chunk than before: nothing of
    /// its own is under way, or it knows how the chunk was begun.
    #[cold]
    pub(super) fn may_go_over(&mut self, header: &Header) -> bool {
        let flags = self.state.chunk(header.chunk).flags.load(Relaxed);
        let surveyed = self.leases[usize::from(header.range)].surveyed;
        let sure = flags & (OUTSTANDING | SURE) != OUTSTANDING;
        if sure || surveyed || !self.exactly_once() {
            return true;
        }
        self.forks.unsure.insert(header.chunk);
        false
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
            common.forks.unsure.remove(&chunk);
            self.asked.remove(&chunk);
        }
        due.retain(|chunk| {
            let asked_ns = self.asked.get(chunk).copied().unwrap_or(0);
            asked_ns == 0 || now_ns.saturating_sub(asked_ns) >= AGAIN_NS
        });
        while let Some(first) = due.first() {
            let range = common.ranges.range_of(*first);
            let of_range = due
                .iter()
                .copied()
                .filter(|chunk| common.ranges.has(range, *chunk));
            let list: Vec<u32> = of_range.take(wire::ASK_MAX).collect();
            let epoch = common.promised(range);
            let header = header::ask(common, range, epoch, &list, header::BEGUN);
            if !send_list(owner(epoch), &header, &list, out) {
                return;
            }
            self.asked
                .extend(list.iter().map(|chunk| (*chunk, now_ns.max(1))));
            due.retain(|chunk| !list.contains(chunk));
        }
    }

    /// Takes how a chunk was begun, from its master.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let master = owner(common.promised(header.range));
        if header.sender != master || !common.forks.unsure.remove(&header.chunk) {
            return Err(DropReason::Late);
        }
        self.asked.remove(&header.chunk);
        let state = common.state.chunk(header.chunk);
        let (epoch, version) = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        let older = (version.wrapping_sub(header.chunk_version) as i32) > 0;
        let apart = is_later(epoch, header.epoch) || epoch == header.epoch && older;
        if apart && header.content == Given::Begun.content() {
            common.keep_contested(header.chunk, common.promised(header.range));
            put_back(common, header, frame.acks[usize::from(common.config.node)]);
        }
        state.flags.fetch_or(SURE, Relaxed);
        Ok(())
    }
}
