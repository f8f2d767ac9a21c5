//! Whether the next master of a range began from what this node streamed last.
//!
//! A master that stops gives its newest weights to the next one, if that asks for them. But the ask
//! may be answered too late, or the answer get lost: the next master has then given this node up,
//! and begun from an older replica. What this node streamed last has a number, as its deltas have.
//! Whatever began from there acknowledges it, however many nodes have streamed the chunk since. A
//! chunk of which such a position comes is joined. After any other, this node asks the master,
//! block by block. The answer is an offer of the positions that chunks were begun from. What was
//! begun from this node's own is joined; of any other chunk [`rejoin`](super::rejoin) fetches the
//! base.
//!
//! Numbers are modulo 256. So one counts only where another node had asked for the chunk: else the
//! two have gone apart, and what fits is chance.
//!
//! Where a network fell into parts, a node that asked for a chunk may have begun it in order, and
//! lost it then to the present master, which knows nothing of that. So all that asked are asked
//! too: what this node did is in the weights of one, and that one brings all of that (`heirs`).
//!
//! Else the line of masters is followed back (`line`): each is asked what it began from, until one
//! began from a position of this node's last reign, or of the master that this node had the chunk
//! from. There the two went apart, and that one has the base. Others may have begun from this
//! node's reign too, on lines that have ended.
//!
//! What a node began from outlives a kill. Where it is not known, as memory was lost or a third
//! node has begun since, a chunk counts as given if it was asked for.
//!
//! Invariant: nothing here changes weights. A chunk leaves the state of a fork here or in
//! [`rejoin`](super::rejoin).

mod heirs;
mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::{FORKED, JOINED, WHOLE};
use super::epochs::{is_later, owner};
use super::{Outbox, To, header};
use crate::wire::{self, DropReason, Dtype, Frame, Header, Held};

pub(super) use line::{Link, Teller};

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
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS;
            self.look(now_ns, common, out);
        }
    }

    fn look(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        let mut waits = false;
        for range in 0..common.config.places() {
            let lease = &common.leases[usize::from(range)];
            let asks = lease.forked_chunks > 0 && lease.is_begun;
            if asks && common.is_alive(now_ns, owner(common.promised(range))) {
                waits = true;
                common.give_up_tellers(now_ns, range);
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
            let whom = |chunk: u32| {
                common
                    .is_untold(chunk)
                    .then(|| common.knows_how_begun(chunk))
            };
            let nodes: BTreeSet<u16> = block.into_iter().filter_map(whom).collect();
            if !again || nodes.is_empty() {
                continue;
            }
            let header = header::ask_for_begun(common, range, chunk, epoch);
            for node in nodes {
                let went = out.send_hello(To::Node(node), header.frame_len(), &mut |slot| {
                    header.emit(slot);
                });
                if !went {
                    return;
                }
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

/// Takes which positions the chunks of a block were begun from, from the node that streams them, or
/// did in between.
pub(super) fn handle(common: &mut Common<'_>, frame: &Frame<'_>) -> Result<(), DropReason> {
    let header = &frame.header;
    let offers = wire::parse_offer(frame.payload).ok_or(DropReason::Malformed)?;
    let range = header.range;
    if range >= common.config.places() || !common.ranges.has(range, header.chunk) {
        return Err(DropReason::Foreign);
    }
    let end = common.ranges.of(range).end;
    let mut late = true;
    for (chunk, begun) in (header.chunk..end).zip(offers) {
        if !common.is_untold(chunk) || header.sender != common.knows_how_begun(chunk) {
            continue;
        }
        late = false;
        if common.was_taken_over(chunk, header.sender, begun) {
            common.join_again((range, chunk), header.sender);
        } else {
            common.ask_further(chunk, header.sender, begun);
        }
    }
    if late { Err(DropReason::Late) } else { Ok(()) }
}

impl Common<'_> {
    /// Notes what this node begins a chunk from, for those that streamed it before.
    pub(super) fn note_begun(&mut self, chunk: u32) {
        let state = self.state.chunk(chunk);
        let (epoch, version) = (state.epoch.load(Relaxed), state.version.load(Relaxed));
        let epoch = if self.holds(chunk) { epoch } else { 0 };
        state.begun_epoch.store(epoch, Relaxed);
        state.begun_version.store(version, Relaxed);
    }

    /// Epoch and version of the position that this node began a chunk from when it took it last.
    pub(super) fn begun(&self, chunk: u32) -> Option<(u32, u32)> {
        let state = self.state.chunk(chunk);
        let (epoch, version) = (&state.begun_epoch, &state.begun_version);
        let position = (epoch.load(Relaxed), version.load(Relaxed));
        (position.0 != 0).then_some(position)
    }

    /// What this node began chunks of a block from.
    pub(super) fn begun_from(&self, chunks: Range<u32>) -> Vec<Held> {
        chunks.map(|chunk| Held::new(self.begun(chunk))).collect()
    }

    /// A position that acknowledges `ack` came of a chunk that this node streamed before. True: it
    /// has what this node streamed last, and the chunk is joined.
    #[cold]
    pub(super) fn hear_of_fork(&mut self, header: &Header, ack: u8) -> bool {
        let joins = self.acknowledges(header.chunk, ack);
        if joins {
            self.join_again((header.range, header.chunk), header.sender);
        } else {
            self.leases[usize::from(header.range)].is_begun = true;
        }
        joins
    }

    /// Whether what acknowledges `ack` of this node's has what it streamed last of a chunk.
    fn acknowledges(&self, chunk: u32, ack: u8) -> bool {
        let number = self.state.chunk(chunk).seq.load(Relaxed);
        self.given(chunk).is_some() && ack == number
    }

    /// Whether this node streamed a chunk and does not know how the next master began it.
    fn is_untold(&self, chunk: u32) -> bool {
        let flags = self.state.chunk(chunk).flags.load(Relaxed);
        flags & FORKED != 0 && !self.forks.apart.contains(&chunk)
    }

    /// The node that is to say how it began a chunk: the present master at first.
    fn knows_how_begun(&self, chunk: u32) -> u16 {
        let teller = self.forks.tellers.get(&chunk);
        let master = || owner(self.promised(self.ranges.range_of(chunk)));
        teller.map_or_else(master, |teller| teller.node)
    }

    /// Whether what `node` began a chunk from has what this node streamed last.
    fn was_taken_over(&self, chunk: u32, node: u16, begun: &Held) -> bool {
        match begun.position() {
            Some(from) => self.is_own(chunk, from),
            // It streamed the chunk in between, and would know.
            None if self.forks.tellers.contains_key(&chunk) => false,
            None => self.given(chunk) == Some(node),
        }
    }

    /// Whether this node takes a chunk back that has what it streamed last: the position (epoch,
    /// version) is that, or a later one that acknowledges its number, `ack`. Another node asked for
    /// it then.
    pub(super) fn has_own(&self, chunk: u32, position: (u32, u32), ack: u8) -> bool {
        let own = self.state.chunk(chunk);
        let later = is_later(position.0, own.epoch.load(Relaxed));
        self.is_own(chunk, position) || later && self.acknowledges(chunk, ack)
    }

    /// Whether a position (epoch, version) of a chunk is what this node streamed last. One of the
    /// node that asked this one for it need not have that: the answer may have come too late.
    fn is_own(&self, chunk: u32, position: (u32, u32)) -> bool {
        let state = self.state.chunk(chunk);
        position == (state.epoch.load(Relaxed), state.version.load(Relaxed))
    }

    /// The next master, or one on the line to it, `with`, began from what this node streamed last:
    /// it holds that as any slave does.
    pub(super) fn join_again(&mut self, (range, chunk): (u16, u32), with: u16) {
        self.keep_for_others(chunk, with);
        self.forks.forget_parting(chunk);
        self.owe_half(chunk);
        let state = self.state.chunk(chunk);
        // What a narrow payload could not say of it counts as the rest did.
        let rest = match self.config.precision {
            Dtype::F32 => 0,
            _ => WHOLE,
        };
        state.flags.store(JOINED | rest, Relaxed);
        self.forget_heirs(chunk);
        let lease = &mut self.leases[usize::from(range)];
        lease.forked_chunks -= 1;
        lease.joined_chunks += 1;
    }
}
