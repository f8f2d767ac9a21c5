//! Restore: how a master that lost its weights gets them back instead of streaming initial ones
//! over a trained model. The asking end; [`replicas`](super::replicas) answers.
//!
//! A node without state of its own (epoch 0) does not stream. It says hello and listens. When all
//! others have said that they hold nothing of its range, the range is new. Else the master surveys
//! it, block by block: each living node offers which position of a chunk it holds, and promises
//! to take none of an earlier epoch any more. Then it pulls each chunk from the node that holds the
//! newest position, with the acknowledgements in it, and goes on from there in a later epoch than
//! any that was heard of.
//!
//! Invariant: a chunk is taken whole from one node, and no living node holds a later position of
//! it. So what any of them knows to be in a position is in the restored weights.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::epochs::{after, ahead};
use super::pull::{Going, check_piece, is_alive};
use super::{Outbox, Report};
use crate::wire::{self, DropReason, Frame};

/// A node that was not heard at all is waited for so long where others hold the range, ns.
const GRACE_NS: u64 = 3_000_000_000;

/// Whether the own range is asked for, and how far that is.
#[derive(Debug, Default)]
pub(super) struct Restore {
    /// When the first of the others told what it holds, ns; 0: none has.
    told_ns: u64,
    going: Option<Going>,
}

impl Restore {
    /// Begins the own range, or asks for what is missing of it, if it does not stream.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if !common.streaming() {
            self.poll_asking(now_ns, common, out);
        }
    }

    #[cold]
    fn poll_asking(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if let Some(going) = &mut self.going {
            // Another node knows an epoch that this one cannot end: a later life has begun it.
            if going.stale || ahead(common.latest_told(), going.epoch) > 0 {
                self.begin(common);
            } else if going.poll(now_ns, common, out) {
                self.end(common);
            }
            return;
        }
        let told = || common.others().filter_map(|node| common.of_us(node));
        let all = told().count() == usize::from(common.config.nodes) - 1;
        if self.told_ns == 0 && told().next().is_some() {
            self.told_ns = now_ns.max(1);
        }
        let waited = now_ns.saturating_sub(self.told_ns) >= GRACE_NS && self.told_ns != 0;
        let empty = common.ranges.of(common.config.node).is_empty();
        if all && told().all(|told| told.held == 0) || empty && waited {
            // All of them: one that was not heard may hold what a predecessor of this node trained,
            // and initial weights must never replace that.
            common.set_epoch(after(common.latest_told()));
        } else if living_holder(now_ns, common) && (all || waited) {
            self.begin(common);
        }
    }

    /// Begins to ask, in an epoch after all that were heard of.
    fn begin(&mut self, common: &mut Common<'_>) {
        let own_chunks = common.ranges.of(common.config.node).len();
        let epoch = after(common.latest_told());
        // Kept: should this life end before the range streams, the next one goes beyond it.
        common
            .state
            .node(common.config.node)
            .promised
            .store(epoch, Relaxed);
        let nodes = common.config.nodes;
        self.going = Some(Going::new(epoch, self.told_ns, own_chunks, nodes));
    }

    /// All chunks are there: the range streams.
    fn end(&mut self, common: &mut Common<'_>) {
        let Some(going) = self.going.take() else {
            return;
        };
        common.set_epoch(going.epoch);
        common.tell_soon = true;
        common.report(Report::Restored {
            node: common.config.node,
            chunks: common.ranges.of(common.config.node).len() as u32,
            missing: going.missing,
        });
    }

    /// Takes an offer of what another node holds.
    pub(super) fn handle_offer(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let offers = wire::parse_offer(frame.payload).ok_or(DropReason::Malformed)?;
        let range = common.ranges.of(common.config.node);
        if header.range != common.config.node || !range.contains(&header.chunk) {
            return Err(DropReason::Foreign);
        }
        let Some(going) = &mut self.going else {
            return Err(DropReason::Late);
        };
        if offers.is_empty() {
            // It promised this epoch or a later one before, to a former life of this node; or it
            // has not come so far yet.
            if let Some(of_us) = &mut common.peers[usize::from(header.sender)].of_us {
                of_us.epoch = header.epoch;
                going.stale = true;
            }
            return Ok(());
        }
        if header.epoch != going.epoch {
            return Err(DropReason::Epoch);
        }
        going.note_offer(header.chunk - range.start, header.sender, offers)
    }

    /// Takes a piece of the own range from the node that was asked for it. The frame says that it
    /// is of this range.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let node = common.config.node;
        check_piece(common, frame)?;
        let Some(going) = &mut self.going else {
            return Err(DropReason::Late);
        };
        if header.epoch != going.epoch {
            return Err(DropReason::Epoch);
        }
        let own = header.chunk - common.ranges.of(node).start;
        going.take(now_ns, common, own as usize, frame)
    }
}

fn living_holder(now_ns: u64, common: &Common<'_>) -> bool {
    let holds = |node: u16| common.of_us(node).is_some_and(|of_us| of_us.held > 0);
    let mut others = common.others();
    others.any(|node| holds(node) && is_alive(now_ns, common, node))
}
