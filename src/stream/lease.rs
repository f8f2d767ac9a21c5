//! What a node knows of each range: how much of it is held here, and for whom it was promised.
//!
//! A range is a lease: it has a first master, its *home*, and is streamed by whichever node the
//! latest epoch names. [`takeover`](super::takeover) decides who that is to be.

use std::ops::Range;

use super::common::Common;
use super::epochs::owner;
use crate::weights::OWN_RANGES;

/// What is known of a range.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    /// Chunks of it that this node has joined as a slave.
    pub(super) joined_chunks: u32,
    /// Chunks of it that this node streamed and has yet to fit to those of the present master.
    pub(super) forked_chunks: u32,
    /// Whether chunks were joined as replicas: their master may not know this life.
    pub(super) by_replica: bool,
    /// Since when others tell of a later epoch, of a node that is silent, while this node streams
    /// it, ns; 0: they do not.
    pub(super) doubted_ns: u64,
    /// The last epoch of it that a node asked for or told of, and which life of that node did.
    pub(super) promised_to: Option<(u32, u16)>,
    /// Whether the present master asked this node before it began.
    pub(super) surveyed: bool,
    /// Whether this node, which streams the range, heard all members that it asked before it began.
    pub(super) heard_all: bool,
    /// Whether the present master streams it by now: a position came of a chunk that is forked, and
    /// did not have what this node streamed last.
    pub(super) is_begun: bool,
}

impl Lease {
    /// Chunks of which this node has a position.
    pub(super) fn held(&self) -> u32 {
        self.joined_chunks + self.forked_chunks
    }
}

/// The chunks that a node streams at present, in turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    runs: Vec<Range<u32>>,
    chunks: u32,
}

impl Turn {
    /// The chunks of all ranges that this node streams.
    pub(super) fn of(common: &Common<'_>) -> Self {
        Self::over(
            common
                .streamed_ranges()
                .map(|range| common.ranges.of(range)),
        )
    }

    /// Those of another node, as far as this one knows.
    pub(super) fn of_node(common: &Common<'_>, node: u16) -> Self {
        let ranges = (0..common.config.places())
            .filter(|range| owner(common.promised(*range)) == node)
            .map(|range| common.ranges.of(range));
        Self::over(ranges.filter(|chunks| !chunks.is_empty()))
    }

    fn over(ranges: impl Iterator<Item = Range<u32>>) -> Self {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for chunks in ranges {
            match runs.last_mut().filter(|last| last.end == chunks.start) {
                Some(last) => last.end = chunks.end,
                None => runs.push(chunks),
            }
        }
        let chunks = runs.iter().map(|run| run.end - run.start).sum();
        Self { runs, chunks }
    }

    /// How many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.chunks as usize
    }

    /// The runs of neighbouring chunks.
    pub(super) fn runs(&self) -> &[Range<u32>] {
        &self.runs
    }

    /// The place of `chunk` among them; of one that is not there that of the next.
    #[inline]
    pub(super) fn place(&self, chunk: u32) -> usize {
        let mut before = 0;
        for run in &self.runs {
            if chunk < run.end {
                return (before + chunk.saturating_sub(run.start)) as usize;
            }
            before += run.end - run.start;
        }
        0
    }

    /// The chunk at a place; none behind the last.
    pub(super) fn chunk(&self, place: usize) -> Option<u32> {
        let mut left = place as u32;
        for run in &self.runs {
            let len = run.end - run.start;
            if left < len {
                return Some(run.start + left);
            }
            left -= len;
        }
        None
    }

    /// The chunk `lead` places behind `chunk`, or at the start again; none: there are none.
    pub(super) fn chunk_ahead(&self, chunk: u32, lead: u32) -> Option<u32> {
        let place = self.place(chunk) + lead as usize;
        self.chunk(place.checked_rem(self.len())?)
    }

    /// `chunk` if it is there, else the next; the first after the last. There must be one.
    pub(super) fn at(&self, chunk: u32) -> u32 {
        let next = self.runs.iter().find(|run| chunk < run.end);
        next.map_or(self.runs[0].start, |run| chunk.max(run.start))
    }
}

impl Common<'_> {
    /// The ranges with chunks that this node streams.
    pub(super) fn streamed_ranges(&self) -> impl Iterator<Item = u16> {
        let nodes = 0..self.config.places();
        nodes.filter(|range| self.streams(*range) && !self.ranges.of(*range).is_empty())
    }

    /// The epoch in which this node streams the first range that it begins; 0: it does not.
    pub(super) fn streamed_first(&self) -> u32 {
        let own = self.config.node;
        let mut ranges = 0..self.config.places();
        let first = ranges
            .find(|range| self.ranges.home(*range) == own && !self.ranges.of(*range).is_empty());
        first.map_or(0, |range| self.streamed(range))
    }

    /// Whether this node may stream `range` too: solvers are told so many runs of weights, at most.
    pub(super) fn may_stream(&self, range: u16) -> bool {
        let streams = |other: &u16| *other == range || self.streams(*other);
        let there = |range: &u16| !self.ranges.of(*range).is_empty();
        let ranges: Vec<u16> = (0..self.config.places()).filter(there).collect();
        let runs = ranges.chunk_by(|a, b| streams(a) == streams(b));
        runs.filter(|run| streams(&run[0])).count() <= OWN_RANGES
    }

    /// Whether `node` streams a range, as far as known here.
    pub(super) fn has_lease(&self, node: u16) -> bool {
        let mut ranges = 0..self.config.places();
        ranges.any(|range| self.owner(range) == Some(node) && !self.ranges.of(range).is_empty())
    }

    /// True if this node streams a range or holds all of it.
    #[inline]
    pub(super) fn has_joined(&self, range: u16) -> bool {
        let joined = self.leases[usize::from(range)].joined_chunks as usize;
        joined == self.ranges.of(range).len() || self.streams(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_over_all_runs() {
        let turn = Turn {
            runs: vec![2..4, 7..10],
            chunks: 5,
        };
        let mut chunk = 0;
        let went: Vec<u32> = (0..7)
            .map(|_| {
                let at = turn.at(chunk);
                chunk = at + 1;
                at
            })
            .collect();
        assert_eq!(went, [2, 3, 7, 8, 9, 2, 3]);
        let places: Vec<usize> = went[..5].iter().map(|chunk| turn.place(*chunk)).collect();
        assert_eq!(places, [0, 1, 2, 3, 4]);
        assert_eq!((turn.place(5), turn.len()), (2, 5));
    }
}
