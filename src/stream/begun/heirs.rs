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
            let before = state.given.swap(node + 1, Relaxed).checked_sub(1);
            // One may have got it, and the next only asked for it.
            let before = before.filter(|before| *before != node);
            let heirs = self.forks.heirs.entry(chunk).or_default();
            heirs.extend(before);
            heirs.remove(&node);
        }
    }

    /// No node has asked for what this one streams last of a chunk.
    pub(in super::super) fn forget_heirs(&mut self, chunk: u32) {
        self.state.chunk(chunk).given.store(0, Relaxed);
        self.forks.heirs.remove(&chunk);
        self.forks.unheard.remove(&chunk);
    }

    /// The last node that asked for what this one streamed last of a chunk.
    pub(in super::super) fn given(&self, chunk: u32) -> Option<u16> {
        self.state.chunk(chunk).given.load(Relaxed).checked_sub(1)
    }

    /// Whether a node may have what this one streamed last of a chunk: then it is not settled yet
    /// who brings that.
    pub(in super::super) fn was_asked_for(&self, chunk: u32) -> bool {
        let some = |all: Option<&BTreeSet<u16>>| all.is_some_and(|all| !all.is_empty());
        let (heirs, unheard) = (&self.forks.heirs, &self.forks.unheard);
        self.given(chunk).is_some() || some(heirs.get(&chunk)) || some(unheard.get(&chunk))
    }

    /// Another node that had asked for a chunk, where the last one does not have what this node
    /// streamed last, or is given up.
    pub(super) fn next_heir(&mut self, chunk: u32) -> Option<u16> {
        let next = self.forks.heirs.get_mut(&chunk)?.pop_first()?;
        self.state.chunk(chunk).given.store(next + 1, Relaxed);
        Some(next)
    }

    /// An heir was silent for too long.
    pub(in super::super) fn give_up_heir(&mut self, chunk: u32, node: u16) {
        self.forks.unheard.entry(chunk).or_default().insert(node);
    }

    /// The present master has what this node streamed last of a chunk from `with`. Of other heirs
    /// each may have it too.
    pub(super) fn keep_for_others(&mut self, chunk: u32, with: u16) {
        let mut all = self.forks.unheard.get(&chunk).cloned().unwrap_or_default();
        all.extend(self.forks.heirs.get(&chunk).into_iter().flatten());
        all.extend(self.given(chunk));
        // Else it is not known which of them it went on from.
        if all.remove(&with) && !all.is_empty() {
            self.keep_as_given(chunk, with);
        }
    }

    /// This node is about to bring what it streamed last of a chunk.
    pub(in super::super) fn keep_for_unheard(&mut self, chunk: u32) {
        let unheard: Option<BTreeSet<u16>> = self.forks.unheard.remove(&chunk);
        if unheard.is_some_and(|nodes| !nodes.is_empty()) {
            self.keep_as_given(chunk, self.config.node);
        }
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
