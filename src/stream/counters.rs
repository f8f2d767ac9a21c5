//! What the stream counts: frames by kind, and every frame that was dropped, by reason.

use crate::wire::ParseError;

/// Why a received frame changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// Not a frame of this format: short, other magic, unknown code, bad length.
    Malformed,
    /// Another version of the format.
    Version,
    /// Another job.
    Session,
    /// An index that this session does not have, or a chunk that is not the sender's to speak of.
    Foreign,
    /// Another model, chunk size or number of nodes.
    Shape,
    /// Our own frame came back.
    Own,
    /// An earlier epoch of the range.
    Epoch,
    /// A position that is older than the one we hold, or the same again.
    Late,
    /// A delta that was applied already.
    Repeated,
    /// NaN or infinity in the payload.
    NonFinite,
    /// We are not master of a trained range yet and take no deltas.
    NotReady,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::Version,
        Self::Session,
        Self::Foreign,
        Self::Shape,
        Self::Own,
        Self::Epoch,
        Self::Late,
        Self::Repeated,
        Self::NonFinite,
        Self::NotReady,
    ];

    /// The name in tables, summaries and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Session => "session",
            Self::Foreign => "foreign",
            Self::Shape => "shape",
            Self::Own => "own",
            Self::Epoch => "epoch",
            Self::Late => "late",
            Self::Repeated => "repeated",
            Self::NonFinite => "non_finite",
            Self::NotReady => "not_ready",
        }
    }
}

impl From<ParseError> for DropReason {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Version(_) => Self::Version,
            _ => Self::Malformed,
        }
    }
}

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
    /// Differences that were NaN or infinite and were taken as zero, weights.
    pub healed_weights: u64,
    /// Hellos sent.
    pub hellos_sent: u64,
    /// Hellos taken.
    pub hellos_taken: u64,
    /// Chunks sent to a master that had lost its weights.
    pub restores_sent: u64,
    /// Chunks taken from a survivor after we had lost ours.
    pub restores_taken: u64,
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
