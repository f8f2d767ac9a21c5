//! How old what a slave holds of another node's range is: in steps of solvers, and in time.
//!
//! Counters only. Touches no frames and no weights.

use std::ops::Range;

use hdrhistogram::Histogram;

use super::Streamer;
use super::common::Common;

/// One of so many chunks has its age in steps counted: steps are far fewer than positions. Where
/// nodes have few chunks, every one has.
const COUNTED: u32 = 16;
/// Chunks of a node that are few.
const FEW: u32 = 16 * COUNTED;

/// Share of the age of late that the newest one replaces.
const LATE: f64 = 1.0 / 64.0;

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
    /// Local steps between positions of late; `None`: no chunk has come twice.
    late: Option<f64>,
    /// Local steps when the first chunk came that is counted.
    began: Option<u64>,
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
            late: None,
            began: None,
        }
    }

    fn note(&mut self, chunk: u32, local: u64, cluster: u64) {
        self.began.get_or_insert(local);
        let before = self.taken[(chunk / self.every) as usize].replace((local, cluster));
        if let Some((local_before, cluster_before)) = before {
            let passed = local.saturating_sub(local_before);
            self.local.saturating_record(passed);
            let late = self.late.unwrap_or(passed as f64);
            self.late = Some(late + LATE * (passed as f64 - late));
            self.cluster
                .saturating_record(cluster.saturating_sub(cluster_before));
        }
    }

    /// Local steps between two positions of a chunk, of late, when `local` have been made. As long
    /// as no chunk has come twice there are at least so many as were made since the first one.
    pub(super) fn late(&self, local: u64) -> f64 {
        let so_far = self.began.map_or(0, |began| local.saturating_sub(began));
        self.late.unwrap_or(so_far as f64)
    }

    /// Notes that a position of `chunk` was taken.
    #[inline]
    pub(super) fn note_taken(&mut self, chunk: u32, common: &Common<'_>) {
        let local = common.local_iterations();
        // Nothing is stale before there are steps.
        if chunk.is_multiple_of(self.every) && local > 0 {
            self.note(chunk, local, common.iterations());
        }
    }

    /// Notes that this node streamed `chunks` itself until now.
    pub(super) fn note_streamed(&mut self, chunks: Range<u32>, common: &Common<'_>) {
        let local = common.local_iterations();
        let cluster = common.iterations();
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

impl Streamer<'_> {
    /// How old foreign chunks were, µs, when their next position was taken.
    pub fn ages_us(&self) -> &Histogram<u64> {
        self.slave.ages_us()
    }

    /// How old foreign chunks were, in steps, when their next position was taken.
    pub fn age_steps(&self) -> &AgeSteps {
        self.slave.age_steps()
    }

    /// Of the nodes that `lives`, the one of whose ranges one is oldest here, and the iterations
    /// that this node's solvers had made when its oldest chunk was taken (0: before their first).
    pub fn oldest_step(&self, lives: impl Fn(u16) -> bool) -> Option<(u16, u64)> {
        let common = &self.common;
        let oldest = |range: u16| {
            let home = || common.ranges.home(range);
            let master = common.owner(range).unwrap_or_else(home);
            let local = self.slave.age_steps().oldest(common.ranges.of(range));
            local.map(|local| (master, local))
        };
        let all = (0..common.config.places()).filter_map(oldest);
        let others = all.filter(|(node, _)| *node != common.config.node && lives(*node));
        others.min_by_key(|(_, local)| *local)
    }

    /// Time since the oldest chunk of `range` was taken, or was streamed here, ns; since the start
    /// where one never was; 0 if this node streams it.
    pub fn range_age_ns(&self, range: u16, now_ns: u64) -> u64 {
        if self.common.streams(range) {
            return 0;
        }
        self.slave.age_ns(self.common.ranges.of(range), now_ns)
    }

    /// Time since the last position of `node` was taken, ns; since the start if none was.
    pub fn position_age_ns(&self, node: u16, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.peer(node).streamed_ns)
    }

    /// Time since the last frame of `node` came that has weights in it, ns; since the start if none
    /// did. Those frames are as long as the MTU allows, and all others are short.
    pub fn long_frame_age_ns(&self, node: u16, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.peer(node).long_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run begins on a slow link: before a chunk has come twice, what it holds is as old as the
    /// run.
    #[test]
    fn nothing_is_younger_than_the_first_turn() {
        let mut ages = AgeSteps::new(4, 2);
        assert_eq!(ages.late(100), 0.0, "nothing came");
        ages.note(0, 100, 200);
        ages.note(1, 105, 210);
        assert_eq!((ages.late(100), ages.late(120)), (0.0, 20.0));
        ages.note(0, 130, 260);
        assert_eq!(ages.late(130), 30.0);
        (0..1000).for_each(|_| ages.note(0, 130, 260));
        assert!(ages.late(500) < 0.1);
    }
}
