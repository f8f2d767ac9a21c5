//! What the stream counts: frames by kind, and every frame that was dropped, by reason.

use crate::wire::DropReason;

/// Totals since the streamer started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Passes over the own range, completed.
    pub cycles: u64,
    /// Positions sent.
    pub positions_sent: u64,
    /// Positions taken.
    pub positions_taken: u64,
    /// Chunk versions that were sent by their masters and never taken here.
    pub positions_missed: u64,
    /// Deltas sent, repeats included.
    pub deltas_sent: u64,
    /// Deltas sent again because the position said that they are missing.
    pub deltas_repeated: u64,
    /// Positions taken whose delta stayed with us because no transmit slot was free.
    pub deltas_kept: u64,
    /// Deltas applied to the own range.
    pub deltas_applied: u64,
    /// Weights that were NaN or infinite: as slave their difference was taken as zero, as master
    /// they were set back to their last finite value.
    pub healed_weights: u64,
    /// Weights of the own range for which a delta was not added, because the sum is NaN or
    /// infinite.
    pub refused_sums: u64,
    /// Times that frames of a node claimed more iterations than it can have made.
    pub refused_claims: u64,
    /// Hellos sent.
    pub hellos_sent: u64,
    /// Hellos taken.
    pub hellos_taken: u64,
    /// Chunks sent to a master that had lost its weights.
    pub restores_sent: u64,
    /// Chunks taken from a survivor after we had lost ours.
    pub restores_taken: u64,
    /// Times that a chunk and its master did not agree, and were made to.
    pub resyncs: u64,
    /// Positions sent a second time, for slaves to compare.
    pub checks_sent: u64,
    /// Chunks compared with what their masters sent.
    pub chunks_checked: u64,
    /// Those of them that differed, and were set right.
    pub differing_chunks: u64,
    /// Ranges taken from a node that was silent, or back from one that had taken them.
    pub takeovers: u64,
    /// Chunks that were streamed here and, as another had begun them, became this node's delta.
    pub forks_joined: u64,
    /// Chunks of which that was not possible: what this node did apart is lost.
    pub abandoned_chunks: u64,
    /// Deltas of nodes that lost their memory that may count twice: this node has them, and the
    /// master that took over from it may have them too.
    pub doubled_deltas: u64,
    /// Frames dropped, by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Counts a dropped frame.
    pub(super) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Frames dropped for `reason`.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}
