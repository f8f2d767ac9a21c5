//! What a streamer tells of itself: how old what it holds of another node's range is, how long its frames are.
//!
//! Reads what the slave noted. Touches no frames.

use super::Streamer;
use crate::wire;

impl Streamer<'_> {
    /// Time since the oldest chunk of `node`'s range was taken, ns; since the start where one never was.
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
        let payload = 4 * self.config.chunk_weights as usize;
        let acks = wire::acks_len(self.config.nodes as u8);
        let delta = wire::HEADER_LEN + payload;
        bytes == delta || bytes == delta + acks
    }
}
