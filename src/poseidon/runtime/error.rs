//! Why a member of a cluster could not start, or stopped.

use std::io;
use std::path::PathBuf;

use super::checkpoint::CheckpointError;
use super::link::LinkError;
use crate::accumulate::AccumulateError;
use crate::node::{NetError, SolverError};
use crate::poseidon::{PlanError, ProtocolViolation, RecordingError};
use crate::snapshot::LoadError;

/// What a process exits with when the cause lies with another member (sysexits' EX_TEMPFAIL):
/// starting it again, with the others, may help.
pub const ANOTHER_FAILED: u8 = 75;

/// Why a member of a cluster could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum PoseidonError {
    /// The plan contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model.
    #[error(transparent)]
    Model(#[from] NetError),
    /// What is to be replayed.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// Buffer, data, or learning-curve file.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// The weights to start from.
    #[error(transparent)]
    Weights(#[from] LoadError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No listening.
    #[error(
        "cannot listen on {address}: {why}; give another address, or port 0 for any that is free"
    )]
    Listen {
        /// The address.
        address: String,
        /// Why.
        why: io::Error,
    },
    /// No address.
    #[error("the coordinator's address {address}: {why}; give HOST:PORT, as 10.0.0.1:7700")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: io::Error,
    },
    /// Less data than work.
    #[error(
        "{who} has {images} pictures to itself, less than one batch of {batch}: use fewer workers or threads, a smaller \
         batch_size, or more data"
    )]
    Share {
        /// Worker and thread.
        who: String,
        /// Pictures in its share.
        images: usize,
        /// Pictures of a batch.
        batch: usize,
    },
    /// A file that others wait for.
    #[error("cannot write {path}: {why}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The system gives no thread or no socket.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        why: io::Error,
    },
    /// The coordinator, or another member, has not let this one in.
    #[error("{who} refuses this member: {why}")]
    Refused {
        /// Who.
        who: String,
        /// What it says.
        why: String,
    },
    /// A member is gone.
    #[error("{who} is dead: {why}")]
    ConnectionLost {
        /// Who.
        who: String,
        /// How that was noticed.
        why: LinkError,
    },
    /// A member sent what nobody can read.
    #[error("{who} is dropped: {why}")]
    InvalidMessage {
        /// Who.
        who: String,
        /// What is wrong.
        why: LinkError,
    },
    /// A member broke the protocol.
    #[error("{who} is dropped, because it broke the protocol: {why}")]
    ProtocolViolation {
        /// Who.
        who: String,
        /// How.
        why: ProtocolViolation,
    },
    /// A member has ended, and said why.
    #[error("{who} ended the run: {why}")]
    Aborted {
        /// Who.
        who: String,
        /// What it said.
        why: String,
    },
    /// Something that does not go with layer-wise synchronisation.
    #[error(
        "clip_gradients needs the gradients of all layers at once, and the reliable path sends each \
         layer on its own: train without it, or with the stream"
    )]
    Clipping,
    /// A budget of nothing.
    #[error("a bandwidth of {0}: give more than 0 bytes per second")]
    Bandwidth(f64),
    /// The loss is NaN or infinite.
    #[error("training has diverged: the loss is {loss} at iteration {iteration}. {remedy}")]
    Diverged {
        /// The loss.
        loss: f32,
        /// Iteration.
        iteration: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// Weights or momentum are NaN or infinite where a checkpoint is due.
    #[error(
        "training has diverged: {name} holds {value} after {steps} steps; no checkpoint is written of that, those \
         before stay. {remedy}"
    )]
    NotFinite {
        /// What holds it.
        name: String,
        /// NaN or infinite.
        value: f32,
        /// Steps made.
        steps: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// Nothing to compute with.
    #[error("0 threads per worker compute nothing: give 1 or more")]
    NoThreads,
    /// The threads of this worker cannot add up their gradients.
    #[error("adding the gradients of this worker's threads: {0}")]
    Accumulate(#[from] AccumulateError),
    /// A thread has panicked; its message is in the log.
    #[error("a thread of this process has panicked; see its message above")]
    Panicked,
}

impl PoseidonError {
    /// True if the cause lies with another member: starting again may help.
    pub fn is_fault_of_another(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost { .. }
                | Self::InvalidMessage { .. }
                | Self::Aborted { .. }
                | Self::ProtocolViolation { .. }
        )
    }
}
