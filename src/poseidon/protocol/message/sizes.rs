//! Which payloads a receiver accepts, and why it refuses others. Numbers only; never panics.

use super::{MAX_TEXT, MessageKind, Payload, VERSION};

/// Why bytes are not a message, or not one that this receiver accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the header, or than it announces.
    #[error("message cut short: {have} bytes, needs {need}")]
    Short {
        /// Bytes that are there.
        have: usize,
        /// Bytes that are needed.
        need: usize,
    },
    /// It does not begin with the mark of a Poseidon message.
    #[error("not a Poseidon message (it begins with {0:02x?}): is something else at that address?")]
    Magic([u8; 2]),
    /// A later or earlier format.
    #[error(
        "message format version {0}, this program speaks {VERSION}: run the same release everywhere"
    )]
    Version(u8),
    /// The kind of message is not known.
    #[error("unknown kind of message {0}")]
    UnknownKind(u8),
    /// A reserved field that is not zero.
    #[error("reserved bits are set")]
    Reserved,
    /// The plan has no such pair or layer, or not for this kind of message.
    #[error("{kind:?} about {subject}, which the cluster's plan does not have")]
    Subject {
        /// Kind of message.
        kind: MessageKind,
        /// Pair or layer.
        subject: u32,
    },
    /// Another size than the plan gives.
    #[error("{kind:?} about {subject} with {bytes} bytes: the cluster's plan has {expected}")]
    Size {
        /// Kind of message.
        kind: MessageKind,
        /// Pair or layer.
        subject: u32,
        /// Bytes that the header announces.
        bytes: usize,
        /// Bytes there should be (at most, for factors and text).
        expected: usize,
    },
    /// Text that is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
}

/// How long messages about a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairSize {
    /// Its weights.
    pub weights: usize,
    /// Consecutive weights that share two values at one bit each.
    pub row: usize,
}

impl PairSize {
    /// Words of the pair at one bit per weight: for each row two values, then its bits.
    pub fn bits_len(self) -> usize {
        let row = self.row.max(1);
        let of = |weights: usize| 2 + weights.div_ceil(32);
        let rest = self.weights % row;
        self.weights / row * of(row) + if rest > 0 { of(rest) } else { 0 }
    }
}

/// How long the payload about each subject is: what a receiver allocates at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Each pair's size.
    pub pairs: Vec<PairSize>,
    /// Outputs and inputs of each layer; `None` if it has no factors.
    pub layers: Vec<Option<[usize; 2]>>,
    /// Rows of the factors of each layer in one clock, at most.
    pub rows: Vec<usize>,
}

impl Sizes {
    /// Checks a payload's length.
    pub(super) fn check(
        &self,
        kind: MessageKind,
        subject: u32,
        bytes: usize,
    ) -> Result<(), ParseError> {
        let unknown = ParseError::Subject { kind, subject };
        let at = subject as usize;
        let (expected, fits) = match kind.payload() {
            Payload::Nothing => (0, bytes == 0),
            Payload::Text => (MAX_TEXT, bytes <= MAX_TEXT),
            Payload::Floats if kind == MessageKind::Factors => {
                let sizes = self.layers.get(at).copied().flatten().ok_or(unknown)?;
                let row = (sizes[0] + sizes[1]) * 4;
                let most = row * self.rows.get(at).copied().unwrap_or(0);
                (most, bytes <= most && bytes.is_multiple_of(row))
            }
            Payload::Floats => {
                let expected = self.pairs.get(at).ok_or(unknown)?.weights * 4;
                (expected, bytes == expected)
            }
            Payload::Words => {
                let expected = self.pairs.get(at).ok_or(unknown)?.bits_len() * 4;
                (expected, bytes == expected)
            }
        };
        if fits {
            return Ok(());
        }
        Err(ParseError::Size {
            kind,
            subject,
            bytes,
            expected,
        })
    }
}
