//! The table of other nodes: what the streamer of this buffer counts of each.
//!
//! Lives in the header of the buffer, behind the slots of components. The streamer is its only
//! writer, and all words are plain atomics. `watch` says what each counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mapping::{Mapping, Shared};

/// Nodes in the table: as many as there are node numbers, and one.
pub const PEERS: usize = 256;
/// Words of a node in it; `watch` says what each counts.
pub const PEER_METERS: usize = 16;

/// One node as it lies in the file.
#[repr(C, align(64))]
pub(super) struct PeerRecord {
    meters: [AtomicU64; PEER_METERS],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shared for PeerRecord {}

/// The words of node `node`.
///
/// # Panics
/// If there is no such node number.
pub(super) fn meters(mapping: &Mapping, node: u16) -> &[AtomicU64; PEER_METERS] {
    let records: &[PeerRecord] = mapping.slice(super::header::PEERS_OFFSET, PEERS);
    &records[usize::from(node)].meters
}

/// All of which something was counted.
pub(super) fn all(mapping: &Mapping) -> Vec<(u16, [u64; PEER_METERS])> {
    let words = |node| {
        meters(mapping, node)
            .each_ref()
            .map(|word| word.load(Relaxed))
    };
    let nodes = (0..PEERS as u16).map(|node| (node, words(node)));
    nodes
        .filter(|(_, words)| words.iter().any(|word| *word != 0))
        .collect()
}
