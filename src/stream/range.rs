//! The split of chunks into ranges: `rank * chunks / masters`, contiguous, for every rank below
//! `masters`. Range r is at home on node r, which masters it first.

use std::ops::Range;

/// The split of chunks into ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Where each node's range begins, and where the last ends: looked up for every frame.
    starts: Vec<u32>,
}

impl Ranges {
    /// A split of `chunks` over the first `masters` of `nodes`; the ranges of the others are empty.
    ///
    /// # Panics
    /// If there is no master, or more than there are nodes.
    pub fn new(chunks: u32, nodes: u16, masters: u16) -> Self {
        assert!((1..=nodes).contains(&masters), "1 to all nodes are masters");
        let start = |node: u16| {
            let rank = u64::from(node.min(masters));
            (rank * u64::from(chunks) / u64::from(masters)) as u32
        };
        Self {
            starts: (0..=nodes).map(start).collect(),
        }
    }

    /// The chunks of `range`; may be empty.
    #[inline]
    pub fn of(&self, range: u16) -> Range<u32> {
        let range = usize::from(range);
        self.starts[range]..self.starts[range + 1]
    }

    /// Whether `chunk` is in `range`.
    #[inline]
    pub fn has(&self, range: u16, chunk: u32) -> bool {
        self.of(range).contains(&chunk)
    }

    /// The range of `chunk`, which must be there.
    #[inline]
    pub fn range_of(&self, chunk: u32) -> u16 {
        (self.starts.partition_point(|start| *start <= chunk) - 1) as u16
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
        fn every_chunk_has_one_master(chunks in 0u32..2000, nodes in 1u16..40, slaves in 0u16..40) {
            let masters = nodes.saturating_sub(slaves).max(1);
            let ranges = Ranges::new(chunks, nodes, masters);
            let mut next = 0;
            for node in 0..nodes {
                let range = ranges.of(node);
                prop_assert_eq!(range.start, next);
                next = range.end;
                for chunk in range {
                    let owners: Vec<u16> = (0..nodes).filter(|node| ranges.has(*node, chunk)).collect();
                    prop_assert_eq!(owners, [node]);
                    prop_assert_eq!(ranges.range_of(chunk), node);
                }
            }
            prop_assert_eq!(next, chunks);
            prop_assert!((masters..nodes).all(|node| ranges.of(node).is_empty()));
            prop_assert!((0..nodes).all(|node| !ranges.has(node, chunks)));
        }
    }
}
