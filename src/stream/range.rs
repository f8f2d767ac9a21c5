//! The split of chunks into ranges: `rank * chunks / ranges`, contiguous, for every rank below the
//! number of ranges. A job has as many ranges as masters; one that nodes may join has as many as
//! node numbers, so that each of them can have one. Neighbouring ranges begin on one node.

use std::ops::Range;

/// The split of chunks into ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Where each range begins, and where the last ends: looked up for every frame.
    starts: Vec<u32>,
    /// Ranges that are not empty by the split.
    count: u16,
    masters: u16,
}

impl Ranges {
    /// A split of `chunks` for a job of `nodes`, of which the first `masters` begin with ranges,
    /// and of `places` node numbers. There are `places` ranges; some may be empty.
    ///
    /// # Panics
    /// If there is no master, more than there are nodes, or fewer places than nodes.
    pub fn new(chunks: u32, nodes: u16, masters: u16, places: u16) -> Self {
        assert!((1..=nodes).contains(&masters), "1 to all nodes are masters");
        assert!(nodes <= places, "each node has a place");
        let count = if masters == nodes { places } else { masters };
        let start = |range: u16| {
            let rank = u64::from(range.min(count));
            (rank * u64::from(chunks) / u64::from(count)) as u32
        };
        Self {
            starts: (0..=places).map(start).collect(),
            count,
            masters,
        }
    }

    /// The node that begins `range` in a new job.
    pub fn home(&self, range: u16) -> u16 {
        let range = u32::from(range.min(self.count - 1));
        (range * u32::from(self.masters) / u32::from(self.count)) as u16
    }

    /// The chunks of the ranges that `node` begins; may be empty.
    pub fn begun_by(&self, node: u16) -> Range<u32> {
        let own = |range: &u16| self.home(*range) == node;
        let mut ranges = (0..self.count).filter(own);
        let Some(first) = ranges.next() else {
            return 0..0;
        };
        let last = ranges.next_back().unwrap_or(first);
        self.of(first).start..self.of(last).end
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
        fn every_chunk_has_one_range_and_every_range_one_home(
            chunks in 0u32..2000, nodes in 1u16..40, slaves in 0u16..40, later in 0u16..40,
        ) {
            let masters = nodes.saturating_sub(slaves).max(1);
            let places = nodes + later;
            let ranges = Ranges::new(chunks, nodes, masters, places);
            let mut next = 0;
            for range in 0..places {
                let chunks = ranges.of(range);
                prop_assert_eq!(chunks.start, next);
                next = chunks.end;
                for chunk in chunks {
                    let all: Vec<u16> = (0..places).filter(|range| ranges.has(*range, chunk)).collect();
                    prop_assert_eq!(all, [range]);
                    prop_assert_eq!(ranges.range_of(chunk), range);
                    prop_assert!(ranges.begun_by(ranges.home(range)).contains(&chunk));
                }
            }
            prop_assert_eq!(next, chunks);
            prop_assert!((0..places).all(|range| !ranges.has(range, chunks)));
            let begun = |node: u16| ranges.begun_by(node).len();
            prop_assert_eq!((0..places).map(begun).sum::<usize>(), chunks as usize);
            prop_assert!((masters..places).all(|node| begun(node) == 0));
        }
    }
}
