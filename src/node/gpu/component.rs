//! A component as a process: in step with a device, with a solver on it and a file for others if
//! asked.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::privileges::drop_privileges;
use super::super::solver_error::SolverError;
use super::in_step::{Claimed, InStep, SyncError, SyncJob};
use super::ipc::{IpcFile, ipc_beside};
use super::solver::{DeviceSolver, DeviceSolverJob, Segment};
use crate::device::{Device, DeviceError};
use crate::solver::DeviceNetError;
use crate::weights::SharedWeights;

/// What a GPU component is started with.
#[derive(Clone, Debug)]
pub struct GpuJob {
    /// The buffer, and how it is kept in step.
    pub sync: SyncJob,
    /// Write the handle of the device's weights to the file [`ipc_beside`].
    pub ipc: bool,
    /// The solver to run on the device, if any.
    pub solver: Option<DeviceSolverJob>,
}

/// Why a GPU component could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// Buffer and device are not kept in step.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The device's solver: data, batches.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// The device's solver: its net.
    #[error(transparent)]
    Net(#[from] DeviceNetError),
    /// The buffer has other tensors than the model.
    #[error("{path} is a buffer of another model than {model}: train the model it was made for", path = path.display())]
    OtherModel {
        /// Path of the buffer.
        path: PathBuf,
        /// The net's name.
        model: String,
    },
    /// The file with the IPC handle.
    #[error("cannot write {path}: {source}", path = path.display())]
    Ipc {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The kernel refuses to take capabilities back.
    #[error("cannot give up capabilities: {0}")]
    Privileges(#[from] caps::errors::CapsError),
}

impl From<DeviceError> for GpuError {
    fn from(error: DeviceError) -> Self {
        Self::Sync(error.into())
    }
}

/// Runs the component on `device` until the buffer's stop switch or `stop` is set. This thread
/// gives up its capabilities.
///
/// # Errors
/// See [`GpuError`].
pub fn run_gpu<D: Device>(device: &D, job: &GpuJob, stop: &AtomicBool) -> Result<(), GpuError> {
    let claimed = Claimed::of(&job.sync)?;
    drop_privileges()?;
    // That of a component that was killed names memory that is gone.
    let _ = std::fs::remove_file(ipc_beside(&job.sync.buffer, job.sync.index));
    let shared = claimed.shared().clone();
    let mut in_step = claimed.start(device)?;
    let weights = &in_step.on_device().weights;
    let _shared_handle = match job.ipc {
        true => Some(IpcFile::write(device, weights, &shared, &job.sync)?),
        false => None,
    };
    let mut solver = match &job.solver {
        Some(solver) => Some(DeviceSolver::new(device, &shared, solver)?),
        None => None,
    };
    let trained = run_both(&mut in_step, &shared, solver.as_mut(), stop);
    let flushed = in_step.flush();
    trained.and(flushed.map_err(GpuError::from))
}

/// The syncer on this thread, the solver on one of its own, until one of them or the operator ends
/// it.
fn run_both<D: Device>(
    in_step: &mut InStep<D>,
    shared: &SharedWeights,
    solver: Option<&mut DeviceSolver<D>>,
    stop: &AtomicBool,
) -> Result<(), GpuError> {
    let ending = AtomicBool::new(false);
    let lent = in_step.on_device();
    let (weights, stream) = (lent.weights.clone(), lent.stream.clone());
    let cycles = lent.cycles.clone();
    std::thread::scope(|scope| {
        let segment = Segment {
            shared,
            weights: &weights,
            stream: &*stream,
            cycles: &cycles,
        };
        let ending = &ending;
        let solver = solver.map(|solver| scope.spawn(move || solver.run(&segment, ending)));
        let over = || solver.as_ref().is_some_and(|thread| thread.is_finished());
        let synced = in_step.run(stop, over);
        ending.store(true, Relaxed);
        let trained = solver.map_or(Ok(()), |thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        synced.map_err(GpuError::from).and(trained)
    })
}
