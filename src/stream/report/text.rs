//! The words of reports.

use std::fmt;

use super::{Difference, Report};

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes { theirs, ours } => write!(f, "{theirs} nodes there, {ours} here"),
            Self::Places { theirs, ours } => write!(
                f,
                "{theirs} node numbers there, {ours} here (give all nodes the same number)"
            ),
            Self::Masters { theirs, ours } => write!(
                f,
                "{theirs} masters there, {ours} here (give all nodes the same number)"
            ),
            Self::Model { theirs, ours } => {
                write!(f, "model {theirs:016x} there, {ours:016x} here")
            }
            Self::ChunkWeights { theirs, ours } => write!(
                f,
                "chunks of {theirs} weights there, of {ours} here (they follow from MTU and precision: give all nodes the same)"
            ),
        }
    }
}

impl Report {
    /// Those about ranges and who streams them; of others those about weights.
    fn fmt_of_ranges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TookOver {
                range,
                from,
                chunks,
            } => write!(
                f,
                "this node streams range {range} now ({chunks} chunks), which node {from} streamed"
            ),
            Self::LostRange { range, to } => write!(
                f,
                "node {to} streams range {range} now: it did not hear this node for a while, or this is its share"
            ),
            Self::Abandoned { range } => write!(
                f,
                "what this node did to range {range} while another node had it is lost in some chunks: no node knows \
                 where the two parted (one that took it over lost its memory, has left, or was away for a minute)"
            ),
            Self::Doubled { node } => write!(
                f,
                "node {node} lost its memory, or did not say what it had sent: deltas of it that two masters of a \
                 range had may count twice"
            ),
            Self::NotKept { errno } => write!(
                f,
                "what this node keeps of ranges that had two masters cannot be written next to its state: {}; it is \
                 lost if this process is killed (free some space)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            _ => self.fmt_of_weights(f),
        }
    }

    /// What became of weights.
    fn fmt_of_weights(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored {
                chunks, missing: 0, ..
            } => write!(
                f,
                "this node had lost its memory: it has the {chunks} chunks of its range back from other nodes"
            ),
            Self::Restored {
                chunks, missing, ..
            } => write!(
                f,
                "this node had lost its memory: of the {chunks} chunks of its range no living node holds {missing}; they \
                 begin with the initial weights"
            ),
            Self::Resync {
                node, first_weight, ..
            } => write!(
                f,
                "the chunk at weight {first_weight} and its master, node {node}, did not agree on what was taken; it \
                 goes on from the master's count (a node lost its memory or was away for long, or frames are forged)"
            ),
            Self::Differs {
                node,
                first_weight,
                weights,
                ..
            } => write!(
                f,
                "{weights} weight(s) held of a chunk of node {node} were not what it had sent, the first is weight \
                 {first_weight}; set right (memory or the streamer's state file is damaged, or frames are \
                 forged)"
            ),
            Self::Healed {
                first_weight,
                weights,
                ..
            } => write!(
                f,
                "{weights} weight(s) of this node's range were NaN or infinite, the first is weight {first_weight}; set \
                 back to their last finite values (a lower base_lr keeps solvers from diverging)"
            ),
            Self::RefusedSum {
                node,
                first_weight,
                weights,
                ..
            } => write!(
                f,
                "a delta of node {node} and {weights} weight(s) of the chunk at weight {first_weight} add up to NaN or \
                 infinity; its part for those is dropped"
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherVersion { node, version } => write!(
                f,
                "node {node} runs another version: its frames have format {version}, ours {}; nothing is taken from \
                 it: run the same release on all nodes",
                crate::wire::VERSION
            ),
            Self::OtherShape { node, difference } => write!(
                f,
                "node {node} runs another job under the same session: {difference}; nothing is taken from it"
            ),
            Self::OtherData { node, theirs, ours } => write!(
                f,
                "node {node} trains on other data ({theirs:016x} there, {ours:016x} here: kind, shape or classes \
                 differ); nothing is taken from it: give all nodes the same data"
            ),
            Self::OtherFirstWeights { node, theirs, ours } => write!(
                f,
                "node {node} began with other weights ({theirs:016x} there, {ours:016x} here): each node's range keeps \
                 its own; give all nodes the same seed, or the same weights to start from"
            ),
            Self::SameNode { node } => write!(
                f,
                "another process is node {node} of this session: two nodes have one index, or two jobs one session; \
                 stop one of them"
            ),
            Self::TwoLives { node } => write!(
                f,
                "two processes are node {node} of this session, or frames are forged: two nodes have one index, or \
                 two jobs one session; stop one of them"
            ),
            Self::Joined { node } => write!(f, "node {node} has joined"),
            Self::Left { node } => write!(f, "node {node} has left, with nothing under way"),
            Self::NewLife { node } => {
                write!(f, "node {node} has begun again without its memory")
            }
            Self::Iterations {
                node,
                claimed,
                believed,
            } => write!(
                f,
                "frames of node {node} claim {claimed} iterations, which it cannot have made; {believed} are counted"
            ),
            _ => self.fmt_of_ranges(f),
        }
    }
}
