//! How old what a slave holds of another node's range is, in steps of solvers.
//!
//! Counters only. Touches no frames and no weights.

use std::ops::Range;

use hdrhistogram::Histogram;

use super::common::Common;

/// One of so many chunks has its age in steps counted: steps are far fewer than positions. Where
/// nodes have few chunks, every one has.
const COUNTED: u32 = 16;
/// Chunks of a node that are few.
const FEW: u32 = 16 * COUNTED;

/// How many steps were made between two positions of a chunk: how stale the weights are that steps
/// are computed from, in the unit that decides whether asynchronous learning is stable.
#[derive(Clone, Debug)]
pub struct AgeSteps {
    /// By the solvers of this node.
    pub local: Histogram<u64>,
    /// By those of the whole cluster, as far as known here.
    pub cluster: Histogram<u64>,
    /// One of so many chunks is counted.
    every: u32,
    /// Local and cluster iterations when a chunk was taken last.
    taken: Vec<Option<(u64, u64)>>,
}

impl AgeSteps {
    pub(super) fn new(chunks: u32, nodes: u16) -> Self {
        let few = chunks / u32::from(nodes) < FEW;
        let every = if few { 1 } else { COUNTED };
        // To a million steps, two significant digits.
        let steps = || Histogram::new_with_bounds(1, 1_000_000, 2).expect("bounds are constant");
        Self {
            local: steps(),
            cluster: steps(),
            every,
            taken: vec![None; chunks.div_ceil(every) as usize],
        }
    }

    fn note(&mut self, chunk: u32, local: u64, cluster: u64) {
        let before = self.taken[(chunk / self.every) as usize].replace((local, cluster));
        if let Some((local_before, cluster_before)) = before {
            self.local
                .saturating_record(local.saturating_sub(local_before));
            self.cluster
                .saturating_record(cluster.saturating_sub(cluster_before));
        }
    }

    /// Notes that a position of `chunk` was taken.
    #[inline]
    pub(super) fn note_taken(&mut self, chunk: u32, common: &Common<'_>) {
        let local = common.local_iterations();
        // Nothing is stale before there are steps.
        if chunk.is_multiple_of(self.every) && local > 0 {
            let cluster = local.saturating_add(common.remote_iterations());
            self.note(chunk, local, cluster);
        }
    }

    /// Notes that this node streamed `chunks` itself until now.
    pub(super) fn note_streamed(&mut self, chunks: Range<u32>, common: &Common<'_>) {
        let local = common.local_iterations();
        let cluster = local.saturating_add(common.remote_iterations());
        let counted = self.counted(chunks);
        self.taken[counted].fill((local > 0).then_some((local, cluster)));
    }

    fn counted(&self, chunks: Range<u32>) -> Range<usize> {
        let [start, end] = [chunks.start, chunks.end].map(|chunk| chunk.div_ceil(self.every));
        start as usize..end as usize
    }

    /// Iterations that this node's solvers had made when the oldest of `chunks` was taken; 0:
    /// before their first. `None`: none of them is counted.
    pub(super) fn oldest(&self, chunks: Range<u32>) -> Option<u64> {
        let taken = self.taken[self.counted(chunks)].iter();
        taken.map(|one| one.map_or(0, |(local, _)| local)).min()
    }
}
