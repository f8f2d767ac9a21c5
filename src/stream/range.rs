//! Which node masters which chunks: `rank * chunks / nodes`, contiguous, for every rank.

use std::ops::Range;

/// The split of `chunks` chunks over `nodes` masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    chunks: u32,
    nodes: u16,
}

impl Ranges {
    /// A split. `nodes` is at least 1.
    pub fn new(chunks: u32, nodes: u16) -> Self {
        assert!(nodes > 0, "a session has at least one node");
        Self { chunks, nodes }
    }

    /// First chunk of `node`'s range.
    fn start(&self, node: u16) -> u32 {
        (u64::from(node) * u64::from(self.chunks) / u64::from(self.nodes)) as u32
    }

    /// The chunks that `node` masters; may be empty if there are fewer chunks than nodes.
    pub fn of(&self, node: u16) -> Range<u32> {
        self.start(node)..self.start(node + 1)
    }

    /// The master of `chunk`, or `None` if there is no such chunk.
    pub fn owner(&self, chunk: u32) -> Option<u16> {
        if chunk >= self.chunks {
            return None;
        }
        // The largest node whose range starts at or before the chunk:
        // floor(node*chunks/nodes) <= chunk  <=>  node*chunks < (chunk+1)*nodes.
        let bound = (u64::from(chunk) + 1) * u64::from(self.nodes);
        Some(((bound - 1) / u64::from(self.chunks)) as u16)
    }

    /// Number of chunks in all.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_chunk_has_one_master(chunks in 0u32..2000, nodes in 1u16..40) {
            let ranges = Ranges::new(chunks, nodes);
            let mut next = 0;
            for node in 0..nodes {
                let range = ranges.of(node);
                prop_assert_eq!(range.start, next);
                next = range.end;
                for chunk in range {
                    prop_assert_eq!(ranges.owner(chunk), Some(node));
                }
            }
            prop_assert_eq!(next, chunks);
            prop_assert_eq!(ranges.owner(chunks), None);
        }
    }
}
