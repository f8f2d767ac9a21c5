//! Nodes that had asked for what this node streamed last of a chunk, but the last one, which the
//! chunk's state names: `given`. And those that were given up, as they were silent for too long.
//!
//! They outlive a kill: each may bring what the next streamer of this node would bring, too.

use std::collections::BTreeSet;

use super::super::kept::empty;
use super::Forks;
use crate::weights::{ForkKey, ForkKind, ForkRecord};

impl Forks<'_> {
    /// The heirs of a chunk but the last one.
    pub(in super::super) fn heirs(&self, chunk: u32) -> impl Iterator<Item = u16> {
        self.heirs.get(&chunk).into_iter().flatten().copied()
    }

    /// Those that were given up.
    pub(in super::super) fn unheard(&self, chunk: u32) -> impl Iterator<Item = u16> {
        self.unheard.get(&chunk).into_iter().flatten().copied()
    }

    pub(in super::super) fn add_heir(&mut self, chunk: u32, node: u16) {
        let new = self.heirs.entry(chunk).or_default().insert(node);
        let known = self.unheard(chunk).any(|unheard| unheard == node);
        if new && !known {
            self.put(&heir(chunk, node, false));
        }
    }

    /// `node` has answered, or the state names it now.
    pub(in super::super) fn remove_heir(&mut self, chunk: u32, node: u16) {
        let was = self
            .heirs
            .get_mut(&chunk)
            .is_some_and(|all| all.remove(&node));
        if was && !self.unheard(chunk).any(|unheard| unheard == node) {
            self.file.remove(&heir(chunk, node, false).key);
        }
    }

    /// `node` was silent for too long.
    pub(in super::super) fn give_up(&mut self, chunk: u32, node: u16) {
        if self.unheard.entry(chunk).or_default().insert(node) {
            self.put(&heir(chunk, node, true));
        }
    }

    /// What this node streamed last of a chunk is in no other node that would bring it.
    pub(in super::super) fn forget_heirs(&mut self, chunk: u32) {
        let all = [self.heirs.remove(&chunk), self.unheard.remove(&chunk)];
        let all: BTreeSet<u16> = all.into_iter().flatten().flatten().collect();
        for node in all {
            self.file.remove(&heir(chunk, node, false).key);
        }
    }

    pub(super) fn take_heir(&mut self, record: &ForkRecord) {
        let all = match record.seq {
            0 => &mut self.heirs,
            _ => &mut self.unheard,
        };
        let ForkKey { chunk, node, .. } = record.key;
        all.entry(chunk).or_default().insert(node);
    }
}

fn heir(chunk: u32, node: u16, given_up: bool) -> ForkRecord {
    let key = ForkKey {
        kind: ForkKind::Heir,
        chunk,
        node,
        epoch: 0,
    };
    ForkRecord {
        seq: given_up.into(),
        ..empty(key)
    }
}
