//! Why a solver could not start, or stopped.

use super::model::NetError;
use crate::solver::data::{BatchesError, DataError};
use crate::watch::curve::CurveError;
use crate::weights::{OpenError, SlotError, StateError};

/// Why a solver could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SolverError {
    /// The buffer cannot be opened.
    #[error("{0}")]
    Buffer(#[from] OpenError),
    /// The component slot cannot be claimed.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The solver's own state file cannot be used.
    #[error("{0}")]
    State(#[from] StateError),
    /// The model cannot be read or built.
    #[error(transparent)]
    Model(#[from] NetError),
    /// Model and pictures do not fit.
    #[error(transparent)]
    Batches(#[from] BatchesError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file of the learning curve cannot be written.
    #[error(transparent)]
    Curve(#[from] CurveError),
    /// The loss is NaN or infinite.
    #[error(
        "training has diverged: the loss is {loss} at iteration {iteration}. Lower base_lr or the momentum; where \
         deltas are merged as a sum, solvers on several nodes add to each other's momentum: merge them as a mean"
    )]
    Diverged {
        /// Loss at which training stopped.
        loss: f32,
        /// Iterations of the cluster.
        iteration: u64,
    },
}
