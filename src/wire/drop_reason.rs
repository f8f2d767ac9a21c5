//! Why a received frame changed nothing: the names under which drops are counted everywhere.

use super::ParseError;

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
    /// An index that this session does not have, or a chunk that the sender does not master.
    Foreign,
    /// Another model, other data, another chunk size or number of nodes.
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
    /// A delta of a chunk whose last position the adapter has yet to read; it comes again.
    Unread,
    /// A piece in f32 of a position that was not taken; that position comes again.
    Piece,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 13] = [
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
        Self::Unread,
        Self::Piece,
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
            Self::Unread => "unread",
            Self::Piece => "piece",
        }
    }
}

impl From<&ParseError> for DropReason {
    fn from(error: &ParseError) -> Self {
        match error {
            ParseError::Version(_) => Self::Version,
            _ => Self::Malformed,
        }
    }
}
