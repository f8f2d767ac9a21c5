//! Messages that are valid by themselves, and break the protocol where and when they arrive.

use super::message::MessageKind;
use super::rounds::RoundError;

/// Why a message breaks the protocol. The run ends then, and the error names the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// It is about a pair or layer that this member does not hold, or of a kind that it does not
    /// take.
    #[error("{kind:?} about {subject}, which this member does not take")]
    UnexpectedSubject {
        /// Kind of the message.
        kind: MessageKind,
        /// Pair or layer of the message.
        subject: u32,
    },
    /// It is an update out of turn.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// It holds weights or a sum, and skips a step or goes back.
    #[error("{kind:?} about pair {subject} after {clock} steps, but {now} was the next")]
    OutOfOrder {
        /// Kind of the message.
        kind: MessageKind,
        /// Pair of the message.
        subject: u32,
        /// Number of steps in the message.
        clock: u64,
        /// Number of steps that was to come.
        now: u64,
    },
}
