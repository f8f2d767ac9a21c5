//! Restore: how the next master of a range gets its newest state, instead of streaming initial
//! weights over a trained model. The asking end; [`replicas`](super::replicas) answers.
//!
//! The next master is a node that lost its memory, or one that takes the range of a silent node
//! ([`takeover`](super::takeover) decides). It surveys the range, block by block: each living node
//! offers which position of a chunk it holds, and promises to take none of an earlier epoch any
//! more. Then it pulls each chunk from the node that holds the newest position, with the
//! acknowledgements in it, and goes on from there in a later epoch than any that was heard of.
//!
//! Invariant: a chunk is taken whole from one node, and no living node holds a later position of
//! it. So what any of them knows to be in a position is in the restored weights.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::common::Common;
use super::epochs::{after, is_later, owner};
use super::header::Given;
use super::pull::Going;
use super::pull_window::PullWindow;
use super::{Outbox, Report};
use crate::wire::{self, DropReason, Frame};

/// The ranges that this node is about to stream, and how far that is.
#[derive(Clone, Debug, Default)]
pub(super) struct Restore {
    going: Vec<Going>,
    /// All that is asked for, of all ranges.
    window: PullWindow,
}

impl Restore {
    /// Whether this node is about to stream `range`.
    pub(super) fn is_going(&self, range: u16) -> bool {
        self.going.iter().any(|going| going.range == range)
    }

    /// Whether this node is about to stream any.
    pub(super) fn is_busy(&self) -> bool {
        !self.going.is_empty()
    }

    /// Begins to ask for `range`, in an epoch after all that were heard of, by `next` (of an epoch
    /// and a node). `told_ns`: since when others have told what they hold.
    pub(super) fn begin(
        &mut self,
        common: &mut Common<'_>,
        range: u16,
        told_ns: u64,
        next: fn(u32, u16) -> u32,
    ) {
        let same = self.going.extract_if(.., |going| going.range == range);
        let mut rivals: Vec<u16> = same.flat_map(|going| going.rivals).collect();
        let (latest, own) = (common.latest_told(range), common.config.node);
        if latest != 0 && owner(latest) != own {
            rivals.push(owner(latest));
        }
        // Kept: should this life end before the range streams, the next one goes beyond it.
        common.promise(range, next(latest, own));
        let promised = common.promised(range);
        if owner(promised) == own && !common.streams(range) {
            self.going
                .push(Going::new(common, range, (told_ns, rivals)));
        }
    }

    /// Asks for what is missing of ranges that this node is about to stream.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if !self.going.is_empty() {
            self.poll_asking(now_ns, common, out);
        }
    }

    #[cold]
    fn poll_asking(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        let on_the_way = self
            .going
            .iter()
            .map(|going| going.on_the_way(common))
            .sum();
        let mut room = self.window.room(on_the_way);
        for mut going in std::mem::take(&mut self.going) {
            let (range, epoch) = (going.range, going.epoch);
            if owner(common.promised(range)) != common.config.node {
                // Another node has begun it later.
                continue;
            }
            let latest = common.latest_told(range);
            if going.stale || is_later(latest, epoch) {
                let others = owner(latest) != common.config.node;
                if !(others && common.is_alive(now_ns, owner(latest))) {
                    let told_ns = going.told_ns();
                    self.going.push(going);
                    self.begin(common, range, told_ns, after);
                }
            } else if going.poll(now_ns, common, (&mut self.window, &mut room), out) {
                end(now_ns, common, &going);
            } else {
                self.going.push(going);
            }
        }
    }

    /// Takes an offer of what another node holds.
    pub(super) fn handle_offer(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let offers = wire::parse_offer(frame.payload).ok_or(DropReason::Malformed)?;
        let nodes = common.config.places();
        if header.range >= nodes || !common.ranges.has(header.range, header.chunk) {
            return Err(DropReason::Foreign);
        }
        let start = common.ranges.of(header.range).start;
        let going = find(&mut self.going, header.range)?;
        if header.chunk_version != going.epoch {
            // Of an ask that is over: it may have come after one of a later epoch.
            return Err(DropReason::Epoch);
        }
        if offers.is_empty() {
            // It promised this epoch or a later one before, to a former life of this node or to
            // another node; or it has not come so far yet.
            let told = &mut common.peers[usize::from(header.sender)].told;
            if let Some(told) = &mut told[usize::from(header.range)]
                && owner(header.epoch) < nodes
            {
                told.epoch = header.epoch;
                going.stale = true;
            }
            return Ok(());
        }
        going.note_offer(header.chunk - start, header.sender, offers)
    }

    /// Takes a piece of a range from the node that was asked for it.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        if header.content != Given::Replica.content() {
            return Err(DropReason::Late);
        }
        let start = common.ranges.of(header.range).start;
        let Self { going, window } = self;
        let going = find(going, header.range)?;
        going.take(
            now_ns,
            common,
            window,
            (header.chunk - start) as usize,
            frame,
        )
    }
}

fn find(going: &mut [Going], range: u16) -> Result<&mut Going, DropReason> {
    let mut going = going.iter_mut();
    let found = going.find(|going| going.range == range);
    found.ok_or(DropReason::Late)
}

/// All chunks are there: the range streams.
fn end(now_ns: u64, common: &mut Common<'_>, going: &Going) {
    let chunks = common.ranges.of(going.range);
    let own = common.config.node;
    let mut from = None;
    let mut masters = BTreeSet::new();
    for (at, chunk) in chunks.clone().enumerate() {
        let before = common.master_before(chunk);
        common.note_begun(chunk);
        // What a node streamed last, and gave itself, has not forked: unless another has begun it
        // in between, and may have gone on from there.
        if before.is_some_and(|before| !going.is_from(at, before) || going.has_rivals(before)) {
            common.keep_base(chunk);
        } else if before.is_none() && common.holds(chunk) && !going.is_from(at, own) {
            common.keep_own_base(now_ns, chunk);
        } else {
            common.begin_whole(chunk, before);
        }
        from = from.or(before);
        masters.extend(before);
    }
    let heard_all = going.heard_all(common, &masters);
    common.begin_streaming(going.range);
    common.leases[usize::from(going.range)].heard_all = heard_all;
    let (range, chunks) = (going.range, chunks.len() as u32);
    common.note_abandoned(range, going.abandoned);
    common.counters.takeovers += u64::from(from.is_some());
    let missing = going.missing;
    common.report(match from {
        Some(from) => Report::TookOver {
            range,
            from,
            chunks,
        },
        None => Report::Restored {
            node: range,
            chunks,
            missing,
        },
    });
}
