//! What is kept of a chunk, and when: at a takeover, where this node goes on, and at the first
//! position of another master.

use std::sync::atomic::Ordering::Relaxed;

use super::super::Report;
use super::super::common::Common;
use super::super::common::chunk_flags::{OUTSTANDING, SURE};
use super::super::epochs::owner;
use super::super::kept::{Base, Contested};
use crate::wire::Header;

impl Common<'_> {
    /// Reports that what must outlive a kill is in memory only, if it is.
    pub(in super::super) fn look_if_kept(&mut self) {
        if let Some(errno) = self.forks.failed.take() {
            self.report(Report::NotKept { errno });
        }
    }

    /// Keeps the position of `chunk` that is held as what this node begins from.
    pub(in super::super) fn keep_base(&mut self, chunk: u32) {
        self.forks.begin_from(chunk, self.held_as_base(chunk));
        self.look_if_kept();
    }

    /// Keeps the position of `chunk` that is held: this node's own, of before it lost its memory.
    /// Another may have taken the chunk over from there, and was not heard.
    pub(in super::super) fn keep_own_base(&mut self, now_ns: u64, chunk: u32) {
        let base = Base {
            // Its master is there.
            back_ns: now_ns.max(1),
            ..self.held_as_base(chunk)
        };
        self.forks.begin_from(chunk, base);
        self.look_if_kept();
    }

    /// The chunk is begun from what `before` streamed last: that one has not gone apart, and needs
    /// no weights of it. But another may have begun the chunk from an older position.
    pub(in super::super) fn begin_whole(&mut self, chunk: u32, before: Option<u16>) {
        // No node has that number.
        self.forks.make_former(chunk, before.unwrap_or(u16::MAX));
        if before.is_some() && self.exactly_once() {
            let numbers = Base {
                weights: Vec::new(),
                ..self.held_as_base(chunk)
            };
            self.forks.set_base(chunk, numbers);
            self.look_if_kept();
        }
    }

    /// The position of `chunk` that is held.
    pub(in super::super) fn held_as_base(&self, chunk: u32) -> Base {
        let state = self.state.chunk(chunk);
        let len = self.config.chunk_weights as usize;
        let acks = self.state.applied(chunk).iter();
        let epoch = state.epoch.load(Relaxed);
        Base {
            epoch,
            version: state.version.load(Relaxed),
            acks: acks.map(|ack| ack.load(Relaxed)).collect(),
            weights: (0..len).map(self.held_position(chunk)).collect(),
            by: owner(epoch),
            back_ns: 0,
        }
    }

    /// This node is about to go on with a range that another took over in between, and is silent.
    /// What it has taken by now that one is to know when it is back: it may have it too.
    #[cold]
    pub(in super::super) fn keep_as_gone_on(&mut self, now_ns: u64, range: u16) {
        if !self.exactly_once() {
            return;
        }
        for chunk in self.ranges.of(range) {
            let acks = self.state.applied(chunk).iter();
            let base = Base {
                epoch: self.streamed(range),
                version: self.state.chunk(chunk).version.load(Relaxed),
                acks: acks.map(|ack| ack.load(Relaxed)).collect(),
                // That one has those: it holds what it began from.
                weights: Vec::new(),
                by: self.config.node,
                // Its master is there.
                back_ns: now_ns.max(1),
            };
            self.forks.set_former(chunk, base);
        }
        self.look_if_kept();
    }

    /// The first position of another master than before, or of the same after others, is about to
    /// be taken: what of this node's it does not acknowledge is contested.
    #[cold]
    pub(in super::super) fn begin_with(&mut self, now_ns: u64, header: &Header, ack: u8) {
        self.forks.note_back(now_ns, header.sender, header.chunk);
        let state = self.state.chunk(header.chunk);
        let flags = state.flags.load(Relaxed);
        // Else put back, and kept as contested, when that turned out.
        if flags & (SURE | OUTSTANDING) != SURE {
            self.note_contested(header.chunk, ack, header.epoch);
        }
        self.forks.note_streams(now_ns, header.chunk, header.sender);
    }

    /// A position of another master than before, of epoch `next`, takes the place of the one that
    /// is held: keeps what of this node's it does not acknowledge.
    pub(in super::super) fn note_contested(&mut self, chunk: u32, ack: u8, next: u32) {
        let state = self.state.chunk(chunk);
        let outstanding = state.flags.load(Relaxed) & OUTSTANDING != 0;
        if outstanding && ack != state.seq.load(Relaxed) {
            self.keep_contested(chunk, next);
        } else {
            let held = state.epoch.load(Relaxed);
            // What was put back is of that very reign, and its master may have it.
            if !self.forks.has_contested_of(chunk, held) {
                self.forks.forget_contested(chunk, owner(held));
            }
        }
    }

    /// Keeps the delta that this node has under way: the master of epoch `next` does not
    /// acknowledge it.
    #[cold]
    pub(in super::super) fn keep_contested(&mut self, chunk: u32, next: u32) {
        let state = self.state.chunk(chunk);
        if !self.exactly_once() || state.flags.load(Relaxed) & OUTSTANDING == 0 {
            return;
        }
        let (_, _, sent) = self.chunk_views(chunk);
        let portion = self.scale(chunk);
        let epoch = state.epoch.load(Relaxed);
        let contested = Contested {
            master: owner(epoch),
            epoch,
            next,
            seq: state.seq.load(Relaxed),
            weights: (0..sent.len()).map(|i| portion * sent.load(i)).collect(),
            back_ns: 0,
        };
        self.forks.set_contested(chunk, contested);
        self.look_if_kept();
    }
}
