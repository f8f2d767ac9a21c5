//! Why a member of a cluster could not start, or stopped.

use std::io;
use std::path::PathBuf;

use super::checkpoint::CheckpointError;
use super::link::LinkError;
use crate::accumulate::AccumulateError;
use crate::node::{NetError, SolverError};
use crate::poseidon::{
    Member, ModelFileError, ParseError, PlanError, ProtocolViolation, RecordingError, Scheme,
};
use crate::snapshot::LoadError;
use crate::solver::DeviceNetError;

/// What a process exits with when the cause lies with another member (sysexits' EX_TEMPFAIL):
/// starting it again, with the others, may help.
pub const ANOTHER_FAILED: u8 = 75;

/// Why a member of a cluster could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum PoseidonError {
    /// The cluster and its plan contradict themselves.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The net cannot be built.
    #[error(transparent)]
    Model(#[from] NetError),
    /// The recording cannot be replayed.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The model file cannot be.
    #[error(transparent)]
    ModelFile(#[from] ModelFileError),
    /// A worker with a solver was given the model of programs with a client.
    #[error(
        "a model file has no net to compute: its workers are programs with a client, and only coordinator and servers          read it"
    )]
    NoSolver,
    /// The buffer, the data or the file of the learning curve failed.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// The weights to start from cannot be loaded.
    #[error(transparent)]
    Weights(#[from] LoadError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The listening socket cannot be opened.
    #[error(
        "cannot listen on {address}: {why}; give another address, or port 0 for any that is free"
    )]
    Listen {
        /// Address to listen on.
        address: String,
        /// What the system says.
        why: io::Error,
    },
    /// The coordinator's address is not HOST:PORT.
    #[error("the coordinator's address {address}: {why}; give HOST:PORT, as 10.0.0.1:7700")]
    Address {
        /// The text that was given.
        address: String,
        /// What is wrong with it, as the system reports it.
        why: io::Error,
    },
    /// A thread's share of the pictures is smaller than its batch.
    #[error(
        "{who} has {images} pictures to itself, less than one batch of {batch}: use fewer workers or threads, a smaller \
         batch_size, or more data"
    )]
    Share {
        /// Worker and thread, for messages.
        who: String,
        /// Pictures in its share.
        images: usize,
        /// Pictures of a batch.
        batch: usize,
    },
    /// A report or the coordinator's address cannot be written.
    #[error("cannot write {path}: {why}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// The system refuses a thread or a socket.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried, as in "cannot ...".
        what: &'static str,
        /// What the system says.
        why: io::Error,
    },
    /// The coordinator has refused this member.
    #[error("{who} refuses this member: {why}")]
    Refused {
        /// Name and address of the coordinator.
        who: String,
        /// Its reason.
        why: String,
    },
    /// There is nothing that the run could go on from.
    #[error("{0}")]
    Resume(String),
    /// The connection to a member is lost: it has ended, or is silent.
    #[error("{who} is dead: {why}")]
    ConnectionLost {
        /// Name and address of the member.
        who: String,
        /// How the connection was lost.
        why: LinkError,
    },
    /// A member sent bytes that are not a message, or has another key.
    #[error("{who} is dropped: {why}")]
    InvalidMessage {
        /// Name and address of the member.
        who: String,
        /// What is wrong with the message.
        why: LinkError,
    },
    /// A member sent a valid message out of turn.
    #[error("{who} is dropped, because it broke the protocol: {why}")]
    ProtocolViolation {
        /// Name and address of the member.
        who: String,
        /// The rule that it broke.
        why: ProtocolViolation,
    },
    /// A member ended the run with an `Abort`.
    #[error("{who} ended the run: {why}")]
    Aborted {
        /// Name and address of the member.
        who: String,
        /// The reason in its `Abort`.
        why: String,
    },
    /// A member has said `Bye` before it has sent what others need.
    #[error(
        "{0} has left, and the others wait for its part of a step: give all workers the same number of iterations, or \
         let the one that is done first end the run for all"
    )]
    LeftEarly(Member),
    /// The solver file asks for gradient clipping, which needs all layers at once.
    #[error(
        "clip_gradients needs the gradients of all layers at once, and the reliable path sends each \
         layer on its own: train without it, or with the stream"
    )]
    Clipping,
    /// The limit of bytes per second is not positive.
    #[error("a bandwidth of {0}: give more than 0 bytes per second")]
    Bandwidth(f64),
    /// A worker's devices are not as many as its threads, or have nothing to compute.
    #[error(
        "this worker has {devices} devices, and {threads} for the number of threads of each worker: as many are needed, one \
         for each device"
    )]
    Devices {
        /// Devices of this worker.
        devices: usize,
        /// Threads of each worker, the same for all members.
        threads: usize,
    },
    /// A GPU is named, and this program cannot use one.
    #[error(
        "this program was built without CUDA: build it with the feature cuda, or use the device `host`"
    )]
    WithoutCuda,
    /// The net does not run on a device, or the device has failed.
    #[error(transparent)]
    OnDevice(#[from] DeviceNetError),
    /// The loss is NaN or infinite.
    #[error("training has diverged: the loss is {loss} at iteration {iteration}. {remedy}")]
    Diverged {
        /// The loss that was found.
        loss: f32,
        /// Iteration in which it was found.
        iteration: u64,
        /// What the user can change.
        remedy: &'static str,
    },
    /// Weights or momentum are NaN or infinite where a checkpoint is due.
    #[error(
        "training has diverged: {name} holds {value} after {steps} steps; no checkpoint is written of that, those \
         before stay. {remedy}"
    )]
    NotFinite {
        /// Name of the array that holds it.
        name: String,
        /// The value: NaN or infinity.
        value: f32,
        /// Number of steps that were made.
        steps: u64,
        /// What the user can change.
        remedy: &'static str,
    },
    /// The run has ended with an error, which a call before this one has returned.
    #[error("the run has ended: {0}")]
    Ended(String),
    /// A client was used out of turn, or given what its plan does not have.
    #[error("{0}")]
    Misuse(String),
    /// The client has no first weights for a layer that no server holds.
    #[error(
        "layer {layer} travels by {scheme}, so that no server sends its first weights: give the client the weights to \
         begin with, the same on all workers, or choose scheme ps or adam for it"
    )]
    FirstWeights {
        /// Name of the layer.
        layer: String,
        /// How it travels.
        scheme: Scheme,
    },
    /// The memory that a client was given is too small for the plan.
    #[error("the client's memory has room for {has} {what}, and the plan has {needs}")]
    Replica {
        /// What is too few of.
        what: &'static str,
        /// How many there are.
        has: usize,
        /// How many there must be.
        needs: usize,
    },
    /// The number of threads is 0.
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
    /// True if this member alone is at fault, whatever the others do meanwhile.
    pub(super) fn is_own_fault(&self) -> bool {
        !self.is_fault_of_another() && !matches!(self, Self::Ended(_))
    }

    /// True if another member is at fault, so that starting all members again may help.
    pub fn is_fault_of_another(&self) -> bool {
        // Another release stays another one, however often it is started.
        let another_version = matches!(
            self,
            Self::InvalidMessage {
                why: LinkError::Parse(ParseError::Version(_)),
                ..
            }
        );
        !another_version
            && matches!(
                self,
                Self::ConnectionLost { .. }
                    | Self::InvalidMessage { .. }
                    | Self::Aborted { .. }
                    | Self::LeftEarly(_)
                    | Self::ProtocolViolation { .. }
            )
    }
}
