//! What the stream counts: frames by kind, every frame that was dropped, by reason, and what was
//! exchanged with each node.

use crate::weights::WeightsView;
use crate::wire::DropReason;

/// Of so many positions of a node one is compared with what is held. A prime, so that it is not
/// the same chunk each time.
const DRIFT_EVERY: u64 = 127;
/// Share of a new comparison in the drift.
const DRIFT_SHARE: f64 = 1.0 / 8.0;

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
    /// New deltas sent in int2, because turns take steps.
    pub deltas_coarse: u64,
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

/// What was exchanged with one other node since the streamer started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeerCounters {
    /// Positions taken that it sent.
    pub positions_taken: u64,
    /// Chunk versions that it sent and that were never taken here.
    pub positions_missed: u64,
    /// Deltas sent to it, repeats included.
    pub deltas_sent: u64,
    /// Deltas sent to it again.
    pub deltas_repeated: u64,
    /// Deltas applied that it sent.
    pub deltas_applied: u64,
    /// Mean square of what is held less its positions, smoothed; none was compared yet: `None`.
    drift: Option<f64>,
}

impl PeerCounters {
    /// Notes a position that is about to be taken: `pos`, f32, where `w` is held.
    #[inline]
    pub(super) fn note_position(&mut self, w: WeightsView<'_>, pos: &[u8]) {
        if self.positions_taken.is_multiple_of(DRIFT_EVERY) {
            self.compare(w, pos);
        }
        self.positions_taken += 1;
    }

    #[cold]
    fn compare(&mut self, w: WeightsView<'_>, pos: &[u8]) {
        let positions = pos.as_chunks::<4>().0.iter().enumerate();
        let squares = positions.map(|(i, pos)| {
            let apart = f64::from(w.load(i)) - f64::from(f32::from_le_bytes(*pos));
            apart * apart
        });
        let mean = squares.sum::<f64>() / w.len() as f64;
        // Local weights may not be finite for a moment.
        if mean.is_finite() {
            let before = self.drift.unwrap_or(mean);
            self.drift = Some(before + DRIFT_SHARE * (mean - before));
        }
    }

    /// How far this node's weights are from its positions when they come: root mean square, in
    /// units of a weight.
    pub fn drift(&self) -> Option<f64> {
        self.drift.map(f64::sqrt)
    }
}
