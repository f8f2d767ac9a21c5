//! What is kept of ranges that had two masters, as values and as records of a file.
//!
//! [`forks`](super::forks) has what they are for, and keeps them.

use super::epochs::{is_later, owner, same_reign};
use super::header::Given;
use crate::weights::{ForkKey, ForkKind, ForkRecord};

/// What is contested with a master that streams again is kept for so long, ns; and the base of one
/// that takes part again: those that it gave the chunk to may need it still.
const KEPT_NS: u64 = 8_000_000_000;
/// Longer, where such a one may be silent: until all were heard for that time, or this is over, ns.
const SILENT_NS: u64 = 60_000_000_000;

/// What a range was begun from, of one chunk. Or what this node streamed last of one, and gave
/// away.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) epoch: u32,
    pub(super) version: u32,
    pub(super) acks: Vec<u8>,
    /// Empty once no node needs them any more.
    pub(super) weights: Vec<f32>,
    /// The node that brings what this node gave away. Of a base: the node that brings what was done
    /// until then, where others begin from something older. That is the master of then, or this
    /// node, once that one has joined it or has lost its memory.
    pub(super) by: u16,
    /// Since when the master of then takes part again, ns; 0: it does not.
    pub(super) back_ns: u64,
}

impl Base {
    /// Whether it is a later position than `other`.
    pub(super) fn is_later(&self, other: &Self) -> bool {
        let later = self.version.wrapping_sub(other.version) as i32 > 0;
        is_later(self.epoch, other.epoch) || self.epoch == other.epoch && later
    }

    /// Whether it has no weights (any more), and is one of `master`.
    pub(super) fn is_numbers_of(&self, master: u16) -> bool {
        self.weights.is_empty() && owner(self.epoch) == master
    }

    /// Whether its master takes part again for long, and no member was silent since `silent_ns`.
    pub(super) fn is_old(&self, now_ns: u64, silent_ns: u64) -> bool {
        let since_ns = self.back_ns.max(silent_ns.min(self.back_ns + SILENT_NS));
        self.back_ns != 0 && now_ns.saturating_sub(since_ns) >= KEPT_NS
    }

    /// `node` takes part in the chunk again. True: it is the master of then, and that is new.
    pub(super) fn note_back(&mut self, now_ns: u64, node: u16) -> bool {
        let new = owner(self.epoch) == node && self.back_ns == 0 && !self.weights.is_empty();
        if new {
            self.back_ns = now_ns.max(1);
        }
        new
    }

    /// `node` does not bring what it did until then: `by` does. True: it is the master of then, and
    /// that is new.
    pub(super) fn is_left_to(&mut self, by: u16, node: u16) -> bool {
        let new = owner(self.epoch) == node && self.by == node && !self.weights.is_empty();
        if new {
            self.by = by;
        }
        new
    }

    /// Adds a delta that is in the weights of both who went apart here.
    pub(super) fn add(&mut self, delta: &[f32]) {
        let weights = self.weights.iter_mut().zip(delta);
        weights.for_each(|(sum, value)| *sum += value);
    }

    /// A chunk has one of the takeover that was last.
    pub(super) fn key(chunk: u32) -> ForkKey {
        ForkKey {
            kind: ForkKind::Base,
            chunk,
            node: 0,
            epoch: 0,
        }
    }

    pub(super) fn record(&self, chunk: u32) -> ForkRecord {
        ForkRecord {
            position: (self.epoch, self.version),
            seq: u8::from(self.back_ns != 0),
            life: u64::from(self.by) + 1,
            acks: self.acks.clone(),
            weights: self.weights.clone(),
            ..empty(Self::key(chunk))
        }
    }

    /// As one of a takeover before the last one: a chunk has one for each master.
    pub(super) fn former_record(&self, chunk: u32) -> ForkRecord {
        let mut record = self.record(chunk);
        record.key.node = 1 + owner(self.epoch);
        record
    }

    pub(super) fn of(record: ForkRecord) -> Self {
        let (epoch, version) = record.position;
        Self {
            epoch,
            version,
            acks: record.acks,
            weights: record.weights,
            // 0 in files of before.
            by: (record.life as u16).checked_sub(1).unwrap_or(owner(epoch)),
            back_ns: u64::from(record.seq),
        }
    }
}

/// The delta of a chunk that was under way when its master changed.
#[derive(Clone, Debug)]
pub(super) struct Contested {
    /// The master before.
    pub(super) master: u16,
    /// The epoch of the position that it answered: that node may have streamed the chunk in several
    /// reigns.
    pub(super) epoch: u32,
    /// The epoch in which it went to another master; 0: not known.
    pub(super) next: u32,
    pub(super) seq: u8,
    pub(super) weights: Vec<f32>,
    /// Since when that master streams the chunk again, ns; 0: it does not.
    pub(super) back_ns: u64,
}

impl Contested {
    /// The one of `all` that `given` stands for, where `asker` asks, which streamed the chunk last
    /// in epoch `last` (0: it does not say). What it took in that reign comes before what it had of
    /// the master before, and of a reign that it had before that one it is asked nothing.
    pub(super) fn of_given<'a>(
        all: &'a [Self],
        asker: u16,
        given: Given,
        last: u32,
    ) -> Option<&'a Self> {
        let went = |to_asker: bool, before: u8| {
            let mut of = all.iter();
            of.find(move |one| {
                let known = one.master == u16::from(before) && one.next != 0;
                known && (owner(one.next) == asker) == to_asker
            })
        };
        let to_asker = || all.iter().find(|one| one.master == asker);
        let of_then = |one: &&Self| last == 0 || !is_later(one.epoch, last);
        let latest = |a: &'a Self, b: &'a Self| if is_later(b.epoch, a.epoch) { b } else { a };
        match given {
            Given::Contested(before) => {
                let both = to_asker().into_iter().chain(went(false, before));
                both.filter(of_then).reduce(latest)
            }
            Given::Former(before) => went(true, before),
            _ => None,
        }
    }

    /// Whether that master streams again for long.
    pub(super) fn is_old(&self, now_ns: u64) -> bool {
        self.back_ns != 0 && now_ns.saturating_sub(self.back_ns) >= KEPT_NS
    }

    pub(super) fn key(chunk: u32, master: u16) -> ForkKey {
        ForkKey {
            kind: ForkKind::Contested,
            chunk,
            node: master,
            epoch: 0,
        }
    }

    pub(super) fn record(&self, chunk: u32) -> ForkRecord {
        ForkRecord {
            position: (self.epoch, self.next),
            seq: self.seq,
            weights: self.weights.clone(),
            ..empty(Self::key(chunk, self.master))
        }
    }

    pub(super) fn of(record: ForkRecord) -> Self {
        Self {
            master: record.key.node,
            epoch: record.position.0,
            next: record.position.1,
            seq: record.seq,
            weights: record.weights,
            back_ns: 0,
        }
    }
}

/// A delta that is in this node's weights, and may be in those of the present master too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwedKey {
    pub(super) chunk: u32,
    /// The slave that sent it.
    pub(super) node: u16,
    /// The epoch in which this node streamed the chunk.
    pub(super) epoch: u32,
}

/// What is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub(super) seq: u8,
    /// The slave's incarnation: another one has never sent it.
    pub(super) life: u64,
    /// So many weights of it are in those of this node, the first.
    pub(super) weights: u32,
    /// The epoch in which this node went apart from others: one of its own, or of the node that it
    /// had the chunk from. 0: not known, and one of its own.
    pub(super) parted: u32,
}

impl Owed {
    /// The node whose epoch that was.
    pub(super) fn went_apart_from(&self, key: OwedKey) -> u16 {
        let parted = (self.parted != 0).then_some(self.parted);
        owner(parted.unwrap_or(key.epoch))
    }

    /// Whether a delta that went to the master of `epoch` may be this one: it went to this node
    /// since then, or to the node before in the reign in which the two went apart.
    pub(super) fn may_be_of(&self, key: OwedKey, epoch: u32) -> bool {
        let own = owner(epoch) == owner(key.epoch) && !is_later(epoch, key.epoch);
        match self.parted {
            0 => same_reign(epoch, key.epoch),
            parted => same_reign(parted, epoch) || own && is_later(epoch, parted),
        }
    }
}

impl OwedKey {
    pub(super) fn key(self) -> ForkKey {
        ForkKey {
            kind: ForkKind::Owed,
            chunk: self.chunk,
            node: self.node,
            epoch: self.epoch,
        }
    }

    pub(super) fn record(self, owed: Owed) -> ForkRecord {
        ForkRecord {
            seq: owed.seq,
            life: owed.life,
            position: (owed.weights, owed.parted),
            ..empty(self.key())
        }
    }

    pub(super) fn of(record: &ForkRecord) -> (Self, Owed) {
        let ForkKey {
            chunk, node, epoch, ..
        } = record.key;
        let owed = Owed {
            seq: record.seq,
            life: record.life,
            weights: record.position.0,
            parted: record.position.1,
        };
        (Self { chunk, node, epoch }, owed)
    }
}

pub(super) fn empty(key: ForkKey) -> ForkRecord {
    ForkRecord {
        key,
        position: (0, 0),
        seq: 0,
        life: 0,
        acks: Vec::new(),
        weights: Vec::new(),
    }
}
