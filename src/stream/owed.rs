//! Deltas that are in this node's weights and may be in those of the present master too, since
//! their slave sent them to both: what [`rejoin`](super::rejoin) could not leave out, as that slave
//! was silent. And the part of a delta that a killed predecessor had added, where another node has
//! the range before the slave sent it again.
//!
//! Once the slave is heard again, it is asked what of its own was contested. What it gives is taken
//! out of the weights, and leaves as a delta. A slave that lost its memory cannot say it any more:
//! then that delta may count twice, which is counted (`doubled_deltas`).
//!
//! Invariant: what is owed is taken out once. A kill in between leaves the journal, and the next
//! streamer goes on from there.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;

use zerocopy::IntoBytes;

use super::common::Common;
use super::common::chunk_flags::{FORKED, JOINED, OUTSTANDING};
use super::epochs::owner;
use super::header::Given;
use super::kept::{Owed, OwedKey};
use super::pieces::{all_pieces, pieces_of, send_list};
use super::{Outbox, Report, header};
use crate::weights::{JournalOp, kernels};
use crate::wire::{self, DropReason, Frame};

/// What did not come is asked for again after this, ns.
const AGAIN_NS: u64 = 50_000_000;
/// Time between two looks, ns.
const LOOK_NS: u64 = 5_000_000;
/// Chunks that are asked for at a time.
const CHUNKS: usize = 256;

/// A delta that was asked for.
#[derive(Clone, Debug)]
struct Asked {
    key: OwedKey,
    /// What its slave is asked for.
    wanted: Given,
    asked_ns: u64,
    /// Pieces that came, one bit each.
    pieces: u8,
    came: Vec<f32>,
}

/// What this node asks for of what it owes.
#[derive(Clone, Debug, Default)]
pub(super) struct Debts {
    asked: Vec<Asked>,
    due_ns: u64,
}

impl Debts {
    /// Asks slaves that are back for what is owed.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        common.forget_old_forks(now_ns);
        if !common.forks.owed().is_empty() && now_ns >= self.due_ns {
            self.due_ns = now_ns + LOOK_NS;
            self.look(now_ns, common, out);
        }
    }

    #[cold]
    fn look(&mut self, now_ns: u64, common: &mut Common<'_>, out: &mut impl Outbox) {
        common.drop_doubled();
        let may_ask = |chunk: u32, node: u16| {
            let flags = common.state.chunk(chunk).flags.load(Relaxed);
            let held = flags & JOINED != 0 || common.streams(common.ranges.range_of(chunk));
            held && flags & FORKED == 0 && common.is_alive(now_ns, node)
        };
        self.asked
            .retain(|one| may_ask(one.key.chunk, one.key.node));
        for (key, owed) in common.forks.owed() {
            // One after the other: an answer does not say to which ask.
            let asked = |one: &Asked| (one.key.chunk, one.key.node) == (key.chunk, key.node);
            if self.asked.len() == CHUNKS {
                break;
            }
            if may_ask(key.chunk, key.node) && !self.asked.iter().any(asked) {
                self.asked.push(Asked {
                    key: *key,
                    wanted: Given::Contested(owed.went_apart_from(*key) as u8),
                    asked_ns: 0,
                    pieces: 0,
                    came: vec![0.0; common.config.chunk_weights as usize],
                });
            }
        }
        self.ask(now_ns, common, out);
    }

    fn ask(&mut self, now_ns: u64, common: &Common<'_>, out: &mut impl Outbox) {
        let of = |one: &Asked| {
            let range = common.ranges.range_of(one.key.chunk);
            (range, one.key.node, one.key.epoch, one.wanted)
        };
        let due = |one: &&mut Asked| one.asked_ns == 0 || now_ns - one.asked_ns >= AGAIN_NS;
        let mut waiting: Vec<_> = self.asked.iter_mut().filter(due).collect();
        while let Some(first) = waiting.first() {
            let (range, node, last, wanted) = of(first);
            let same = |one: &&mut &mut Asked| of(one) == (range, node, last, wanted);
            let mut list: Vec<_> = waiting.iter_mut().filter(same).collect();
            list.truncate(wire::ASK_MAX);
            let chunks: Vec<u32> = list.iter().map(|one| one.key.chunk).collect();
            let epoch = common.promised(range);
            let header = header::ask_of_parting(common, range, (epoch, last), &chunks, wanted);
            if !send_list(node, &header, &chunks, out) {
                return;
            }
            list.iter_mut().for_each(|one| one.asked_ns = now_ns.max(1));
            waiting.retain(|one| one.asked_ns != now_ns.max(1));
        }
    }

    /// Takes a piece of what was asked for.
    pub(super) fn handle(
        &mut self,
        common: &mut Common<'_>,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let header = &frame.header;
        let asked = |one: &Asked| (one.key.chunk, one.key.node) == (header.chunk, header.sender);
        let at = self.asked.iter().position(asked).ok_or(DropReason::Late)?;
        let one = &mut self.asked[at];
        let nothing = one.wanted.is_nothing(header);
        if !nothing && !one.wanted.is_given(header) {
            return Err(DropReason::Late);
        }
        common.counters.restores_taken += 1;
        let weights = common.config.restored(header);
        let payload = frame.payload.as_chunks::<4>().0;
        for (value, bytes) in one.came[weights].iter_mut().zip(payload) {
            *value = f32::from_le_bytes(*bytes);
        }
        one.pieces |= pieces_of(&common.config, header);
        if one.pieces == all_pieces(&common.config) {
            let one = self.asked.swap_remove(at);
            let sent = (!nothing).then_some((header.epoch, header.seq));
            common.pay(one.key, sent, &one.came);
        }
        Ok(())
    }
}

impl Common<'_> {
    /// This node joins a chunk that it streamed and went apart from others in epoch `parted`, with
    /// deltas of `nodes` in its weights that may be in those of the present master too. Before
    /// their numbers are overwritten.
    pub(super) fn owe_all(&mut self, chunk: u32, parted: u32, nodes: &[u16]) {
        let epoch = self.state.chunk(chunk).epoch.load(Relaxed);
        let key = |node| OwedKey { chunk, node, epoch };
        let weights = self.config.chunk_weights;
        // A predecessor that was killed at this may have owed more.
        for node in (0..self.config.places()).filter(|node| !nodes.contains(node)) {
            let owed = self.forks.owed().get(&key(node));
            if owed.is_some_and(|owed| owed.weights == weights) {
                self.forks.settle(key(node));
            }
        }
        for node in nodes {
            let owed = Owed {
                seq: self.state.applied(chunk)[usize::from(*node)].load(Relaxed),
                life: self.life(*node),
                weights,
                parted,
            };
            self.forks.owe(key(*node), owed);
        }
        self.look_if_kept();
    }

    /// A chunk that this node streamed has another master. Deltas that a predecessor was killed at
    /// are in its weights as far as it came, and their slaves send them to that master. Before
    /// their numbers are overwritten.
    pub(super) fn owe_half(&mut self, chunk: u32) {
        if !self.state.has_partials() {
            return;
        }
        let epoch = self.state.chunk(chunk).epoch.load(Relaxed);
        for node in self.others() {
            let Some((seq, weights)) = self.state.partial_of(chunk, node) else {
                continue;
            };
            let life = self.life(node);
            let owed = Owed {
                seq,
                life,
                weights,
                parted: 0,
            };
            self.forks.owe(OwedKey { chunk, node, epoch }, owed);
            self.state.forget_partial(chunk, node);
        }
        self.look_if_kept();
    }

    /// The weights of a chunk are another node's now: what was added to them in part is not there.
    pub(super) fn forget_half(&self, chunk: u32) {
        for node in self.others() {
            self.state.forget_partial(chunk, node);
        }
    }

    /// What was contested of the slave of a debt: a delta (its epoch, its number), or nothing. Or a
    /// position of its own, which it gave to this node: that is in the weights, another brings it
    /// too, and what it was added to is not kept any more.
    fn pay(&mut self, key: OwedKey, sent: Option<(u32, u8)>, delta: &[f32]) {
        let Some(owed) = self.forks.owed().get(&key).copied() else {
            return;
        };
        // Another number: this node never had it. Of another reign: it was not contested then.
        let is_owed = |(epoch, seq)| owed.may_be_of(key, epoch) && seq == owed.seq;
        if sent.is_some_and(is_owed) {
            let weights = delta.len().min(owed.weights as usize);
            self.take_out(key, &delta[..weights]);
        } else if sent.is_some_and(|(epoch, _)| owner(epoch) == key.node) {
            self.forks.settle(key);
            self.note_doubled(key.node);
        } else {
            self.forks.settle(key);
        }
    }

    /// Takes a delta, or the first weights of one, out of the weights: what leaves of this node has
    /// it no more.
    fn take_out(&mut self, key: OwedKey, delta: &[f32]) {
        let OwedKey { chunk, node, epoch } = key;
        let (w, ..) = self.chunk_views(chunk);
        let (own, journal) = (self.config.node, self.state.journal());
        // What goes out is multiplied by the portion; what is streamed is not.
        let state = self.state.chunk(chunk);
        let under_way = state.flags.load(Relaxed) & OUTSTANDING != 0;
        let portion = match (self.streams(self.ranges.range_of(chunk)), under_way) {
            (true, _) => 1.0,
            (false, true) => self.portion(),
            (false, false) => self.scale(chunk),
        };
        let mut values: Vec<f32> = delta.iter().map(|value| -value / portion).collect();
        values.resize(w.len(), 0.0);
        // Numbers of nodes fit into that of a delta: there are as many acks in a byte.
        let number = node as u8;
        let done = self.state.partial(chunk, own, number);
        journal.begin_at(JournalOp::TakeOut, chunk, own, number, epoch, done);
        kernels::apply_delta(w, values.as_bytes(), done, journal, self.writes());
        self.note_taken_out(chunk, node, epoch);
        journal.end();
    }

    /// A delta was taken out, all of it.
    pub(super) fn note_taken_out(&mut self, chunk: u32, node: u16, epoch: u32) {
        self.forks.settle(OwedKey { chunk, node, epoch });
        self.state.forget_partial(chunk, self.config.node);
    }

    /// What was owed of nodes that lost their memory may count twice.
    fn drop_doubled(&mut self) {
        let lost = |(key, owed): (&OwedKey, &Owed)| {
            let life = self.life(key.node);
            (life != owed.life && life != 0 && owed.life != 0).then_some(*key)
        };
        let lost: Vec<OwedKey> = self.forks.owed().iter().filter_map(lost).collect();
        for key in lost {
            self.forks.settle(key);
            self.note_doubled(key.node);
        }
    }

    /// A delta of `node` may count twice.
    pub(super) fn note_doubled(&mut self, node: u16) {
        self.counters.doubled_deltas += 1;
        self.report(Report::Doubled { node });
    }
}
