//! Hello: who is there, and who holds what.
//!
//! Each node says which life of each node it knows, which epoch of its range, and how much of it it
//! holds. [`epochs`](super::epochs) and [`takeover`](super::takeover) have what follows from that.
//! As many nodes as are heard when one goes share the mean and the rate. Turns of masters count
//! those that learn.

use super::common::Common;
use super::strangers;
use super::{Outbox, To, header};
use crate::wire::{DropReason, Frame, Hello, NodeSeen, SEEN_MAX};

/// Time between hellos until all nodes have been heard, and from then on, ns.
const HELLO_SOON_NS: u64 = 20_000_000;
/// Time between two hellos where something came up that others wait for, ns.
const HELLO_NOW_NS: u64 = 2_000_000;
const HELLO_LATER_NS: u64 = 500_000_000;

/// When the next hello is due.
#[derive(Clone, Debug, Default)]
pub(super) struct Hellos {
    due_ns: u64,
    last_ns: u64,
    /// The node that the next hello begins with.
    first: u16,
}

impl Hellos {
    /// Sends a hello when one is due; true: one went.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        common: &mut Common<'_>,
        out: &mut impl Outbox,
    ) -> bool {
        if common.tell_soon {
            common.tell_soon = false;
            self.due_ns = self.due_ns.min(self.last_ns + HELLO_NOW_NS);
        }
        if now_ns < self.due_ns {
            return false;
        }
        common.count_nodes(now_ns);
        let settled = common.ready()
            && !common.leaves()
            // Others wait for the news.
            && !common.settled()
            && common
                .members()
                .all(|node| common.peers[node as usize].ready);
        self.last_ns = now_ns;
        self.due_ns = now_ns
            + if settled {
                // Else nodes that are at rest would be silent to each other.
                HELLO_LATER_NS.min(common.config.silence_ns)
            } else {
                HELLO_SOON_NS
            };
        let hello = hello(now_ns, common, self.first);
        let header = header::hello(common, hello.seen.len());
        let went = out.send_hello(To::All, header.frame_len(), &mut |slot| {
            hello.emit(header.emit(slot).1)
        });
        common.counters.hellos_sent += u64::from(went);
        if went {
            let end = hello.first + hello.seen.len() as u16;
            self.first = if end == common.config.places() {
                0
            } else {
                end
            };
        } else {
            // A few bytes that others wait for: as soon as there is a slot.
            self.due_ns = now_ns;
        }
        went
    }
}

/// What this node says of itself, and of the nodes from `first` on.
pub(super) fn hello(now_ns: u64, common: &Common<'_>, first: u16) -> Hello {
    let config = &common.config;
    let end = config.places().min(first.saturating_add(SEEN_MAX));
    Hello {
        fingerprint: config.fingerprint,
        data: config.data,
        first_weights: config.first_weights,
        incarnation: config.incarnation,
        chunk_weights: config.chunk_weights,
        chunks: config.chunks,
        nodes: config.nodes,
        later: config.later as u8,
        stay: common.stay(),
        settled: common.settled(),
        masters: config.masters,
        trained_ms: common.trained.claim_ms(),
        first,
        seen: (first..end)
            .map(|node| seen(now_ns, common, node))
            .collect(),
    }
}

/// What this node says of `node` and of its range.
fn seen(now_ns: u64, common: &Common<'_>, node: u16) -> NodeSeen {
    let life = if node == common.config.node {
        common.config.incarnation
    } else {
        common.life(node)
    };
    let held = if common.streams(node) {
        common.ranges.of(node).len() as u32
    } else {
        common.leases[usize::from(node)].held()
    };
    NodeSeen {
        life: life as u32,
        epoch: common.promised(node),
        held,
        silent: !common.is_alive(now_ns, node),
        gone: common.is_gone(node),
        by_multicast: common.hears_by_multicast(now_ns, node),
        iterations: common.iterations_to_tell(now_ns, node),
    }
}

/// Takes a hello of another node: which life of it this is, and what it says of this one.
pub(super) fn handle(
    now_ns: u64,
    common: &mut Common<'_>,
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
    common.hear_stay(now_ns, sender, hello.stay);
    common.peers[usize::from(sender)].settled = hello.settled;
    common.hear_life(now_ns, sender, hello.incarnation);
    if let Some(of_us) = hello.seen_of(common.config.node) {
        common.hear_own_life(sender, of_us.life);
    }
    for (range, told) in (hello.first..).zip(&hello.seen) {
        common.hear_of_range(now_ns, sender, range, *told);
        common.hear_of_gone(now_ns, range, *told);
        common.hear_of_iterations(now_ns, sender, range, *told);
    }
    Ok(())
}
