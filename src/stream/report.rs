//! What the stream has to tell a person: another job under the same name, weights that were not
//! finite, claims that were not believed.
//!
//! Holds the kinds of report and the queue that a [`Streamer`](super::Streamer) fills. Prints
//! nothing, knows no clock: `node` decides how often a report of one key is shown. Invariant: the
//! queue holds one report for each key, the newest, and a bounded number of keys; frames that
//! any host can forge cost no memory.

use std::ops::Range;

mod text;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be, but worth a line.
    Info,
    /// Training goes on, something needs a look.
    Warning,
    /// The job does not do what was asked.
    Error,
}

/// In what the shape of another node's job differs from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Number of nodes.
    Nodes {
        /// What that node has.
        theirs: u16,
        /// What this node has.
        ours: u16,
    },
    /// Number of node numbers.
    Places {
        /// What that node has.
        theirs: u16,
        /// What this node has.
        ours: u16,
    },
    /// Number of nodes that master a range.
    Masters {
        /// What that node has.
        theirs: u16,
        /// What this node has.
        ours: u16,
    },
    /// Fingerprint of the model: names, shapes and offsets of tensors.
    Model {
        /// What that node has.
        theirs: u64,
        /// What this node has.
        ours: u64,
    },
    /// Weights of a chunk, which follow from the MTU.
    ChunkWeights {
        /// What that node has.
        theirs: u32,
        /// What this node has.
        ours: u32,
    },
}

/// One thing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A frame of this session in another version of the format.
    OtherVersion {
        /// Who sent it.
        node: u16,
        /// Version of the frame.
        version: u8,
    },
    /// A node of this session has another model, chunk size or number of nodes.
    OtherShape {
        /// Index of the node.
        node: u16,
        /// In what.
        difference: Difference,
    },
    /// A node of this session trains on other data.
    OtherData {
        /// Index of the node.
        node: u16,
        /// Hash of its data's kind, shape and classes.
        theirs: u64,
        /// That of this node.
        ours: u64,
    },
    /// A node of this new job began with other weights.
    OtherFirstWeights {
        /// Index of the node.
        node: u16,
        /// Hash of its first weights.
        theirs: u64,
        /// That of this node.
        ours: u64,
    },
    /// Another process has our own index.
    SameNode {
        /// Our index.
        node: u16,
    },
    /// Two processes have one index, another one than ours.
    TwoLives {
        /// Which index.
        node: u16,
    },
    /// A node has joined the job.
    Joined {
        /// Index of the node.
        node: u16,
    },
    /// A node has left the job, with nothing of its own under way.
    Left {
        /// Index of the node.
        node: u16,
    },
    /// A node has lost its memory and begins again.
    NewLife {
        /// Index of the node.
        node: u16,
    },
    /// The own range was lost, and is back.
    Restored {
        /// This node.
        node: u16,
        /// Its chunks.
        chunks: u32,
        /// Those of them that no node held: they begin with the initial weights.
        missing: u32,
    },
    /// This node streams a range that another node streamed.
    TookOver {
        /// Which range.
        range: u16,
        /// The node before.
        from: u16,
        /// Its chunks.
        chunks: u32,
    },
    /// Another node streams a range that this node streamed.
    LostRange {
        /// Which range.
        range: u16,
        /// That node.
        to: u16,
    },
    /// What this node did to chunks of a range, apart from the node that streams it now, is lost.
    Abandoned {
        /// Which range.
        range: u16,
    },
    /// Deltas of a node that lost its memory, or did not say what it had sent, may count twice.
    Doubled {
        /// That node.
        node: u16,
    },
    /// What must outlive a kill is in memory only.
    NotKept {
        /// The error of the system (errno).
        errno: i32,
    },
    /// A chunk and its master did not agree on what was taken, and were made to.
    Resync {
        /// The master.
        node: u16,
        /// Index of the chunk's first weight in the buffer.
        first_weight: u64,
        /// Weights of a chunk.
        chunk_weights: u32,
    },
    /// What is held of a chunk was not what its master had sent, and was set right.
    Differs {
        /// The master.
        node: u16,
        /// Index of the first weight that differed.
        first_weight: u64,
        /// How many there were in its chunk.
        weights: u32,
        /// Weights of a chunk.
        chunk_weights: u32,
    },
    /// Weights of the own range were NaN or infinite.
    Healed {
        /// This node.
        node: u16,
        /// Index of the first of them in the buffer.
        first_weight: u64,
        /// How many there were in its chunk.
        weights: u32,
        /// Weights of a chunk.
        chunk_weights: u32,
    },
    /// Adding a delta would have made weights of the own range NaN or infinite.
    RefusedSum {
        /// Whose delta.
        node: u16,
        /// Index of the chunk's first weight in the buffer.
        first_weight: u64,
        /// How many of its weights were left as they are.
        weights: u32,
        /// Weights of a chunk.
        chunk_weights: u32,
    },
    /// A node's frames claim more iterations than it can have made.
    Iterations {
        /// Index of the node.
        node: u16,
        /// What was claimed.
        claimed: u64,
        /// What is taken for true.
        believed: u64,
    },
}

impl Report {
    /// What reports of one kind on one node have in common, however often they come.
    pub fn key(&self) -> (u8, u16) {
        match *self {
            Self::OtherVersion { node, .. } => (0, node),
            Self::OtherShape { node, .. } => (1, node),
            Self::OtherData { node, .. } => (2, node),
            Self::OtherFirstWeights { node, .. } => (3, node),
            Self::SameNode { node } => (4, node),
            Self::TwoLives { node } => (5, node),
            Self::NewLife { node } => (6, node),
            Self::Healed { node, .. } => (7, node),
            Self::RefusedSum { node, .. } => (8, node),
            Self::Iterations { node, .. } => (9, node),
            Self::Restored { node, .. } => (10, node),
            Self::Resync { node, .. } => (11, node),
            Self::TookOver { range, .. } => (12, range),
            Self::LostRange { range, .. } => (13, range),
            Self::Abandoned { range } => (14, range),
            Self::Joined { node } => (15, node),
            Self::Left { node } => (16, node),
            Self::Doubled { node } => (17, node),
            Self::NotKept { .. } => (18, 0),
            Self::Differs { node, .. } => (19, node),
        }
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::NewLife { .. }
            | Self::Joined { .. }
            | Self::Left { .. }
            | Self::TookOver { .. }
            | Self::LostRange { .. }
            | Self::Restored { missing: 0, .. } => Severity::Info,
            Self::Healed { .. }
            | Self::RefusedSum { .. }
            | Self::Iterations { .. }
            | Self::Restored { .. }
            | Self::Abandoned { .. }
            | Self::Doubled { .. }
            | Self::NotKept { .. }
            | Self::Differs { .. }
            | Self::Resync { .. } => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// The weights of the buffer that it is about (their chunk): which tensors those are, the
    /// manifest knows.
    pub fn weights(&self) -> Option<Range<u64>> {
        match *self {
            Self::Healed {
                first_weight,
                chunk_weights,
                ..
            }
            | Self::RefusedSum {
                first_weight,
                chunk_weights,
                ..
            }
            | Self::Differs {
                first_weight,
                chunk_weights,
                ..
            }
            | Self::Resync {
                first_weight,
                chunk_weights,
                ..
            } => {
                let chunk = u64::from(chunk_weights.max(1));
                let start = first_weight / chunk * chunk;
                Some(start..start + chunk)
            }
            _ => None,
        }
    }
}

/// Reports that were not taken yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports(Vec<Report>);

/// More keys than this are not kept between two looks at the queue.
const MOST: usize = 64;

impl Reports {
    /// Puts a report in; one of the same key goes.
    pub(super) fn push(&mut self, report: Report) {
        let key = report.key();
        let at = self.0.iter().position(|queued| queued.key() == key);
        match at {
            Some(at) => self.0[at] = report,
            None if self.0.len() < MOST => self.0.push(report),
            None => {}
        }
    }

    /// Takes all, in the order in which they first came.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Report> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_keeps_one_of_each_key_and_is_bounded() {
        let mut reports = Reports::default();
        for node in 0..1000 {
            for believed in 0..3 {
                reports.push(Report::Iterations {
                    node,
                    claimed: 9,
                    believed,
                });
            }
        }
        let taken: Vec<Report> = reports.take().collect();
        assert_eq!(taken.len(), MOST);
        for (node, report) in taken.into_iter().enumerate() {
            let newest = Report::Iterations {
                node: node as u16,
                claimed: 9,
                believed: 2,
            };
            assert_eq!(report, newest);
        }
        assert_eq!(reports.take().count(), 0);
    }

    #[test]
    fn a_report_about_weights_names_their_chunk() {
        let healed = Report::Healed {
            node: 0,
            first_weight: 77,
            weights: 2,
            chunk_weights: 32,
        };
        assert_eq!(healed.weights(), Some(64..96));
        assert_eq!(Report::SameNode { node: 1 }.weights(), None);
        assert!(healed.to_string().contains("weight 77"), "{healed}");
    }
}
