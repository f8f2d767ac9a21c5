//! What a streamer tells of itself: how old what it holds of another node's range is, how long its
//! frames are.
//!
//! Reads what the slave noted. Touches no frames.

use hdrhistogram::Histogram;

use super::Streamer;
use crate::wire;

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
}

impl Streamer<'_> {
    /// Notes that a position of `chunk` was taken.
    pub(super) fn note_age_steps(&mut self, chunk: u32) {
        // Nothing is stale before there are steps.
        if chunk.is_multiple_of(self.age_steps.every) && self.local_iterations > 0 {
            let local = self.local_iterations;
            let cluster = local.saturating_add(self.remote_iterations());
            self.age_steps.note(chunk, local, cluster);
        }
    }

    /// Of the nodes that `lives`, the one whose range is oldest here, and the iterations that this
    /// node's solvers had made when its oldest chunk was taken (0: before their first).
    pub fn oldest_step(&self, lives: impl Fn(u16) -> bool) -> Option<(u16, u64)> {
        let every = self.age_steps.every;
        let oldest = |node: u16| {
            let range = self.ranges.of(node);
            let counted = range.start.div_ceil(every)..range.end.div_ceil(every);
            let taken = &self.age_steps.taken[counted.start as usize..counted.end as usize];
            let local = taken.iter().map(|one| one.map_or(0, |(local, _)| local));
            local.min().map(|local| (node, local))
        };
        let others = self.others().filter(|node| lives(*node));
        others.filter_map(oldest).min_by_key(|(_, local)| *local)
    }

    /// How old foreign chunks were, in steps, when their next position was taken.
    pub fn age_steps(&self) -> &AgeSteps {
        &self.age_steps
    }

    /// Time since the oldest chunk of `node`'s range was taken, ns; since the start where one never
    /// was.
    pub fn range_age_ns(&self, node: u16, now_ns: u64) -> u64 {
        let range = self.ranges.of(node);
        let taken = &self.taken_ns[range.start as usize..range.end as usize];
        let oldest = taken.iter().min();
        oldest.map_or(0, |taken| now_ns.saturating_sub(*taken))
    }

    /// Time since the last position of `node` was taken, ns; since the start if none was.
    pub fn position_age_ns(&self, node: u16, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.peers[node as usize].streamed_ns)
    }

    /// Whether a position or a delta of this job has so many bytes.
    pub fn is_usual_length(&self, bytes: usize) -> bool {
        let payload = self
            .config
            .precision
            .payload_len(self.config.chunk_weights as usize);
        let acks = wire::acks_len(self.config.nodes as u8);
        let delta = wire::HEADER_LEN + payload;
        bytes == delta || bytes == delta + acks
    }
}
