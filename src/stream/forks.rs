//! Forks: what two masters of one chunk did apart comes together again, and counts once.
//!
//! A node may lose a range while it streams it: it stood still, its cable was cut, only its
//! streamer was dead. Others go on from the newest position that they have, the *base*; what the
//! node did since is not in it. So the next master keeps the base, and the node, when it is back,
//! asks for it: `w - base` is a delta as any other.
//!
//! Deltas that the node had applied after the base are in its weights, and their slaves have sent
//! them again, since the base does not acknowledge them: they are *contested*. So each slave keeps,
//! at the first position of another master, the delta that this one does not acknowledge, for each
//! master before. The node knows by its own acknowledgements which of them it has, asks for those,
//! and leaves them out.
//!
//! Bases and contested deltas are in this process's memory only: a kill of the node that keeps them
//! loses them, and then what that fork did is lost (`abandoned_chunks`) or one delta counts twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use super::Report;
use super::common::Common;
use super::common::chunk_flags::{FORKED, OUTSTANDING, SURE};
use super::epochs::{is_later, owner};
use crate::wire::Header;

/// Masters of a chunk before the present one for which a slave keeps a delta, at most.
const MASTERS: usize = 4;

/// What a range was begun from, of one chunk.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) epoch: u32,
    pub(super) version: u32,
    pub(super) acks: Vec<u8>,
    /// Empty once no node needs them any more.
    pub(super) weights: Vec<f32>,
}

impl Base {
    /// Whether it is a later position than `other`.
    pub(super) fn is_later(&self, other: &Self) -> bool {
        let later = self.version.wrapping_sub(other.version) as i32 > 0;
        is_later(self.epoch, other.epoch) || self.epoch == other.epoch && later
    }
}

/// The delta of a chunk that was under way when its master changed.
#[derive(Clone, Debug)]
pub(super) struct Contested {
    /// The master before.
    master: u16,
    pub(super) seq: u8,
    pub(super) weights: Vec<f32>,
}

/// What this node keeps for those whose ranges others have begun.
#[derive(Clone, Debug, Default)]
pub(super) struct Forks {
    bases: BTreeMap<u32, Base>,
    contested: BTreeMap<u32, Vec<Contested>>,
    /// Chunks of which this node does not know how their master began them.
    pub(super) unsure: BTreeSet<u32>,
    /// Epoch and version of the position that this node began a chunk from.
    pub(super) begun: BTreeMap<u32, (u32, u32)>,
    /// The node that asked for what this one streamed last.
    pub(super) given: BTreeMap<u32, u16>,
    /// Chunks that this node streamed, and the present master began from something else.
    pub(super) apart: BTreeSet<u32>,
}

impl Forks {
    pub(super) fn base(&self, chunk: u32) -> Option<&Base> {
        self.bases.get(&chunk)
    }

    /// The base of `chunk`, if one of `masters` streamed it and the weights are there.
    pub(super) fn base_of(&self, chunk: u32, masters: &[u16]) -> Option<&Base> {
        let base = self.base(chunk).filter(|base| !base.weights.is_empty());
        base.filter(|base| masters.contains(&owner(base.epoch)))
    }

    /// The chunk was begun from what its master before streamed last: none has gone apart.
    pub(super) fn begin_whole(&mut self, chunk: u32) {
        self.bases.remove(&chunk);
    }

    /// Whether there is anything that a node whose range another has begun may ask for.
    pub(super) fn keeps_any(&self) -> bool {
        let mut bases = self.bases.values();
        !self.contested.is_empty() || bases.any(|base| !base.weights.is_empty())
    }

    /// What of `chunk` was under way to `master` when another began it.
    pub(super) fn contested(&self, chunk: u32, master: u16) -> Option<&Contested> {
        let mut all = self.contested.get(&chunk)?.iter();
        all.find(|one| one.master == master)
    }

    fn forget_contested(&mut self, chunk: u32, master: u16) {
        if let Some(all) = self.contested.get_mut(&chunk) {
            all.retain(|one| one.master != master);
            if all.is_empty() {
                self.contested.remove(&chunk);
            }
        }
    }

    /// A delta or a position of `node` came for `chunk`: if it streamed that before, it needs the
    /// base no more.
    #[inline]
    pub(super) fn note_back(&mut self, node: u16, chunk: u32) {
        if !self.bases.is_empty() {
            self.forget_base(node, chunk);
        }
    }

    #[cold]
    fn forget_base(&mut self, node: u16, chunk: u32) {
        if let Some(base) = self.bases.get_mut(&chunk)
            && owner(base.epoch) == node
        {
            base.weights = Vec::new();
        }
    }
}

impl Common<'_> {
    /// Notes that `node`, which begins a range, asked for a chunk that this node streamed.
    pub(super) fn note_given(&mut self, chunk: u32, node: u16) {
        if self.state.chunk(chunk).flags.load(Relaxed) & FORKED != 0 {
            self.forks.given.insert(chunk, node);
        }
    }

    /// Keeps the position of `chunk` that is held as what this node begins from.
    pub(super) fn keep_base(&mut self, chunk: u32) {
        let state = self.state.chunk(chunk);
        let len = self.config.chunk_weights as usize;
        let acks = self.state.applied(chunk).iter();
        let base = Base {
            epoch: state.epoch.load(Relaxed),
            version: state.version.load(Relaxed),
            acks: acks.map(|ack| ack.load(Relaxed)).collect(),
            weights: (0..len).map(self.held_position(chunk)).collect(),
        };
        self.forks.bases.insert(chunk, base);
    }

    /// The first position of another master than before is about to be taken: what of this node's
    /// it does not acknowledge is contested.
    #[cold]
    pub(super) fn begin_with(&mut self, header: &Header, ack: u8) {
        self.forks.note_back(header.sender, header.chunk);
        self.forks.forget_contested(header.chunk, header.sender);
        let state = self.state.chunk(header.chunk);
        let flags = state.flags.load(Relaxed);
        if flags & (SURE | OUTSTANDING) == SURE {
            // Put back, and kept as contested, when that turned out.
            return;
        }
        self.note_contested(header.chunk, ack);
    }

    /// A position of another master than before takes the place of the one that is held: keeps what
    /// of this node's it does not acknowledge.
    pub(super) fn note_contested(&mut self, chunk: u32, ack: u8) {
        let state = self.state.chunk(chunk);
        let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
        if outstanding && ack != state.seq.load(Relaxed) {
            self.keep_contested(chunk);
        } else {
            let before = owner(state.epoch.load(Relaxed));
            self.forks.forget_contested(chunk, before);
        }
    }

    /// Counts and reports chunks of a range of which what this node did apart is lost.
    pub(super) fn note_abandoned(&mut self, range: u16, chunks: u32) {
        if chunks > 0 {
            self.counters.abandoned_chunks += u64::from(chunks);
            self.report(Report::Abandoned { range });
        }
    }

    /// Keeps the delta that this node has under way: the present master does not acknowledge it.
    #[cold]
    pub(super) fn keep_contested(&mut self, chunk: u32) {
        let state = self.state.chunk(chunk);
        if !self.exactly_once() || state.flags.load(Relaxed) & OUTSTANDING == 0 {
            return;
        }
        let (_, _, sent) = self.chunk_views(chunk);
        let portion = self.portion();
        let master = owner(state.epoch.load(Relaxed));
        let contested = Contested {
            master,
            seq: state.seq.load(Relaxed),
            weights: (0..sent.len()).map(|i| portion * sent.load(i)).collect(),
        };
        self.forks.forget_contested(chunk, master);
        let all = self.forks.contested.entry(chunk).or_default();
        all.push(contested);
        if all.len() > MASTERS {
            all.remove(0);
        }
    }
}
