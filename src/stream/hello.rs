//! Hello: who is there, and who has seen what.
//!
//! A node without state of its own (epoch 0) does not stream. It says hello and listens:
//! - when every other node has said that it has seen nothing of the range, the range is new: it
//!   streams, under epoch 1;
//! - when one has seen all of it, that node is asked to send its replica back
//!   ([`restore`](super::restore)).

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::restore::Restore;
use super::strangers;
use super::{Outbox, To, header};
use crate::wire::{DropReason, Frame, Hello, RangeSeen};

/// Time between hellos until all nodes have been heard, and from then on, ns.
const HELLO_SOON_NS: u64 = 20_000_000;
const HELLO_LATER_NS: u64 = 500_000_000;
/// A node whose position came within this time streams, ns.
const STREAMS_NS: u64 = 1_000_000_000;

/// When the next hello is due.
#[derive(Debug, Default)]
pub(super) struct Hellos {
    due_ns: u64,
}

impl Hellos {
    /// Sends a hello when one is due, which asks for the own range where it is needed.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        restore: &Restore,
        out: &mut impl Outbox,
    ) {
        if now_ns < self.due_ns {
            return;
        }
        let settled = common.ready()
            && common
                .others()
                .all(|node| common.peers[node as usize].ready);
        self.due_ns = now_ns
            + if settled {
                HELLO_LATER_NS
            } else {
                HELLO_SOON_NS
            };
        let config = &common.config;
        let hello = Hello {
            fingerprint: config.fingerprint,
            data: config.data,
            first_weights: config.first_weights,
            incarnation: config.incarnation,
            chunk_weights: config.chunk_weights,
            chunks: config.chunks,
            masters: config.masters,
            trained_ms: common.trained.claim_ms(),
            seen: (0..config.nodes).map(|node| seen(common, node)).collect(),
        };
        let header = header::hello(common, restore.survivor(common));
        let went = out.send_hello(To::Group, header.frame_len(), &mut |slot| {
            hello.emit(header.emit(slot).1)
        });
        common.counters.hellos_sent += u64::from(went);
        if !went {
            // A few bytes that others wait for: as soon as there is a slot.
            self.due_ns = now_ns;
        }
    }
}

fn seen(common: &Common<'_>, node: u16) -> RangeSeen {
    if node == common.config.node {
        return if common.streaming() {
            RangeSeen::All
        } else {
            RangeSeen::Nothing
        };
    }
    match common.peers[node as usize].joined_chunks as usize {
        all if all == common.ranges.of(node).len() => RangeSeen::All,
        0 => RangeSeen::Nothing,
        _ => RangeSeen::Part,
    }
}

/// Takes a hello of another node: notes what it says of our range, and whether it asks for its own.
pub(super) fn handle(
    now_ns: u64,
    common: &mut Common<'_>,
    restore: &mut Restore,
    frame: &Frame<'_>,
) -> Result<(), DropReason> {
    let hello = Hello::parse(frame.payload).ok_or(DropReason::Malformed)?;
    let sender = frame.header.sender;
    if !strangers::belongs(now_ns, common, sender, &hello) {
        return Err(DropReason::Shape);
    }
    strangers::check_first_weights(common, frame, &hello);
    common.counters.hellos_taken += 1;
    common.trained.hear(now_ns, hello.trained_ms);
    // Who asks does not stream; a question that arrives after positions has been overtaken by
    // them.
    let streamed_ns = common.peers[sender as usize].streamed_ns;
    let streams = streamed_ns != 0 && now_ns.saturating_sub(streamed_ns) < STREAMS_NS;
    let node = common.config.node;
    let asks = frame.header.range == node && !streams;
    let holds = hello.seen[node as usize] == RangeSeen::All && !common.ranges.of(node).is_empty();
    restore.note_hello(sender, asks, holds);
    // All of them: one that was not heard may hold what a predecessor of this node trained, and
    // initial weights must never replace that.
    if !common.streaming() && restore.is_new(common) {
        common.state.epoch().store(1, Relaxed);
    }
    Ok(())
}
