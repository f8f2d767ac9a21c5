//! Whether the next master of a range began from what this node streamed last.
//!
//! A master that stops gives its newest weights to the next one, if that asks for them. But the ask
//! may be answered too late, or the answer get lost: the next master has then given this node up,
//! and begun from an older replica. So this node asks it, block by block, once it streams. The
//! answer is an offer of the positions that chunks were begun from. A chunk that was begun from
//! this node's own is joined; of any other [`rejoin`](super::rejoin) fetches the base.
//!
//! Who streams knows what it began from while its process lives, and after a kill where it has kept
//! a base. Where that is not known any more, or a third node has begun since, a chunk counts as
//! given if it was asked for.
//!
//! Invariant: nothing here changes weights. A chunk leaves the state of a fork here or in
//! [`rejoin`](super::rejoin).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{FORKED, JOINED};
use super::epochs::{is_later, owner};
use super::{Outbox, To, header};
use crate::wire::{self, DropReason, Frame, Held};

/// What did not come is asked for again after this, ns.
const AGAIN_NS: u64 = 50_000_000;
/// Time between two looks, ns.
const LOOK_NS: u64 = 1_000_000;

/// Blocks that were asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun {
    /// When, ns, by their first chunk.
    asked: BTreeMap<u32, u64>,
    due_ns: u64,
}

impl Begun {
    /// Asks how chunks were begun that this node streamed.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS;
            self.look(now_ns, common, out);
        }
    }

    fn look(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        let mut waits = false;
        for range in 0..common.config.places() {
            let lease = &common.leases[usize::from(range)];
            let asks = lease.forked_chunks > 0 && lease.is_begun;
            if asks && common.is_alive(now_ns, owner(common.promised(range))) {
                waits = true;
                self.ask(now_ns, common, range, out);
            }
        }
        if !waits {
            self.asked.clear();
        }
    }

    #[cold]
    fn ask(&mut self, now_ns: u64, common: &Common<'_>, range: u16, out: &mut impl Outbox) {
        let epoch = common.promised(range);
        for block in blocks(common.ranges.of(range)) {
            let asked_ns = self.asked.get(&block.start).copied();
            let again = asked_ns.is_none_or(|asked_ns| now_ns.saturating_sub(asked_ns) >= AGAIN_NS);
            let chunk = block.start;
            if !again || !block.into_iter().any(|chunk| common.is_untold(chunk)) {
                continue;
            }
            let header = header::ask_for_begun(common, range, chunk, epoch);
            let to = To::Node(owner(epoch));
            let went = out.send_hello(to, header.frame_len(), &mut |slot| {
                header.emit(slot);
            });
            if !went {
                return;
            }
            self.asked.insert(chunk, now_ns);
        }
    }
}

/// A range in blocks, each of which one ask is about.
fn blocks(chunks: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let block = wire::BLOCK_CHUNKS;
    let starts = chunks.clone().step_by(block as usize);
    starts.map(move |start| start..chunks.end.min(start + block))
}

/// Takes which positions the chunks of a block were begun from, from the node that streams them.
pub(super) fn handle(common: &mut Common<'_>, frame: &Frame<'_>) -> Result<(), DropReason> {
    let header = &frame.header;
    let offers = wire::parse_offer(frame.payload).ok_or(DropReason::Malformed)?;
    let range = header.range;
    if range >= common.config.places() || !common.ranges.has(range, header.chunk) {
        return Err(DropReason::Foreign);
    }
    if header.sender != owner(common.promised(range)) {
        return Err(DropReason::Late);
    }
    let end = common.ranges.of(range).end;
    for (chunk, begun) in (header.chunk..end).zip(offers) {
        if !common.is_untold(chunk) {
            continue;
        }
        if common.was_taken_over(chunk, header.sender, begun) {
            common.join_again(range, chunk);
        } else {
            common.forks.apart.insert(chunk);
        }
    }
    Ok(())
}

impl Common<'_> {
    /// Notes what this node begins a chunk from, for those that streamed it before.
    pub(super) fn note_begun(&mut self, chunk: u32) {
        let state = self.state.chunk(chunk);
        let position = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        self.forks.begun.insert(chunk, position);
    }

    /// What this node began chunks of a block from, as far as it knows.
    pub(super) fn begun_from(&self, chunks: Range<u32>) -> Vec<Held> {
        let begun = |chunk| {
            let base = self.forks.base(chunk);
            let base = base.map(|base| (base.epoch, base.version));
            Held::new(self.forks.begun.get(&chunk).copied().or(base))
        };
        chunks.map(begun).collect()
    }

    /// Whether this node streamed a chunk and does not know how the next master began it.
    fn is_untold(&self, chunk: u32) -> bool {
        let flags = self.state.chunk(chunk).flags.load(Relaxed);
        flags & FORKED != 0 && !self.forks.apart.contains(&chunk)
    }

    /// Whether what `master` began a chunk from has what this node streamed last.
    fn was_taken_over(&self, chunk: u32, master: u16, begun: &Held) -> bool {
        match begun.position() {
            Some(from) => self.has_own(chunk, from),
            None => self.given(chunk) == Some(master),
        }
    }

    /// Whether a position (epoch, version) of a chunk has what this node streamed last: it is that,
    /// or of the node to which this one gave it.
    pub(super) fn has_own(&self, chunk: u32, position: (u32, u32)) -> bool {
        let state = self.state.chunk(chunk);
        let own = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        let given = self.given(chunk) == Some(owner(position.0));
        position == own || is_later(position.0, own.0) && given
    }

    /// The next master began from what this node streamed last: it holds that as any slave does.
    pub(super) fn join_again(&mut self, range: u16, chunk: u32) {
        let state = self.state.chunk(chunk);
        state.flags.store(JOINED, Relaxed);
        state.given.store(0, Relaxed);
        let lease = &mut self.leases[usize::from(range)];
        lease.forked_chunks -= 1;
        lease.joined_chunks += 1;
    }
}
