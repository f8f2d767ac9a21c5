//! The *heirs* of a chunk: nodes that asked for what this node streamed last, and may have it.
//!
//! Of several the present master has it from one, who brings it; or this node brings it, since the
//! present master has it not, and an heir was silent for too long to be waited for. The others must
//! leave it out when they are back: they bring what they did since. So it is kept for them.
//!
//! Invariant: what is kept is what `last` holds until the chunk is joined.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::super::common::Common;
use super::super::common::chunk_flags::FORKED;
use super::super::kept::Base;

impl Common<'_> {
    /// Notes that `node`, which begins a range, asked for a chunk that this node streamed.
    pub(in super::super) fn note_given(&mut self, chunk: u32, node: u16) {
        let state = self.state.chunk(chunk);
        if state.flags.load(Relaxed) & FORKED != 0 {
            let before = state.given.load(Relaxed).checked_sub(1);
            // One may have got it, and the next only asked for it.
            if let Some(before) = before.filter(|before| *before != node) {
                self.forks.add_heir(chunk, before);
                self.look_if_kept();
            }
            state.given.store(node + 1, Relaxed);
            self.forks.remove_heir(chunk, node);
        }
    }

    /// No node has asked for what this one streams last of a chunk.
    pub(in super::super) fn forget_heirs(&mut self, chunk: u32) {
        self.state.chunk(chunk).given.store(0, Relaxed);
        self.forks.forget_heirs(chunk);
    }

    /// The last node that asked for what this one streamed last of a chunk.
    pub(in super::super) fn given(&self, chunk: u32) -> Option<u16> {
        self.state.chunk(chunk).given.load(Relaxed).checked_sub(1)
    }

    /// Whether a node may have what this one streamed last of a chunk: then it is not settled yet
    /// who brings that.
    pub(in super::super) fn was_asked_for(&self, chunk: u32) -> bool {
        let mut others = self.forks.heirs(chunk).chain(self.forks.unheard(chunk));
        self.given(chunk).is_some() || others.next().is_some()
    }

    /// Another node that had asked for a chunk, where the last one does not have what this node
    /// streamed last, or is given up.
    pub(super) fn next_heir(&mut self, chunk: u32) -> Option<u16> {
        let next = self.forks.heirs(chunk).next()?;
        self.state.chunk(chunk).given.store(next + 1, Relaxed);
        self.forks.remove_heir(chunk, next);
        Some(next)
    }

    /// An heir was silent for too long.
    pub(in super::super) fn give_up_heir(&mut self, chunk: u32, node: u16) {
        self.forks.give_up(chunk, node);
        self.look_if_kept();
    }

    /// `with` has what this node streamed last of a chunk. Of other heirs each may have it too.
    pub(super) fn keep_for_others(&mut self, chunk: u32, with: u16) {
        let others = self.forks.unheard(chunk).chain(self.forks.heirs(chunk));
        let all: BTreeSet<u16> = others.chain(self.given(chunk)).collect();
        if all.len() > 1 {
            // One that is no heir is on the line to the present master: then no heir brings it.
            let by = all.get(&with).unwrap_or(&self.config.node);
            self.keep_as_given(chunk, *by);
        }
    }

    /// This node is about to bring what it streamed last of a chunk.
    pub(in super::super) fn keep_for_unheard(&mut self, chunk: u32) {
        if self.forks.unheard(chunk).next().is_some() {
            self.keep_as_given(chunk, self.config.node);
        }
        self.forks.forget_heirs(chunk);
    }

    #[cold]
    fn keep_as_given(&mut self, chunk: u32, by: u16) {
        if !self.exactly_once() {
            return;
        }
        let base = Base {
            by,
            ..self.held_as_base(chunk)
        };
        self.forks.set_former(chunk, base);
        self.look_if_kept();
    }
}
