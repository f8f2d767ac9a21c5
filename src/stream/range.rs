//! Which node masters which chunks: `rank * chunks / nodes`, contiguous, for every rank.

use std::ops::Range;

/// The split of `chunks` chunks over `nodes` masters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Where each node's range begins, and where the last ends: looked up for every frame.
    starts: Vec<u32>,
}

impl Ranges {
    /// A split. `nodes` is at least 1.
    pub fn new(chunks: u32, nodes: u16) -> Self {
        assert!(nodes > 0, "a session has at least one node");
        let start = |node: u16| (u64::from(node) * u64::from(chunks) / u64::from(nodes)) as u32;
        Self {
            starts: (0..=nodes).map(start).collect(),
        }
    }

    /// The chunks that `node` masters; may be empty if there are fewer chunks than nodes.
    pub fn of(&self, node: u16) -> Range<u32> {
        let node = usize::from(node);
        self.starts[node]..self.starts[node + 1]
    }

    /// Whether `node` is the master of `chunk`.
    pub fn owns(&self, node: u16, chunk: u32) -> bool {
        self.of(node).contains(&chunk)
    }

    /// Number of chunks in all.
    pub fn chunks(&self) -> u32 {
        self.starts[self.starts.len() - 1]
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
                    let owners: Vec<u16> = (0..nodes).filter(|node| ranges.owns(*node, chunk)).collect();
                    prop_assert_eq!(owners, [node]);
                }
            }
            prop_assert_eq!(next, chunks);
            prop_assert!((0..nodes).all(|node| !ranges.owns(node, chunks)));
        }
    }
}
