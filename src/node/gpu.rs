//! The GPU component: keeps the weights of a device in step with the buffer, and trains on them if
//! asked.
//!
//! One thread runs the [`GpuSyncer`], another the device's solver, further ones add deltas. Waits
//! for nothing but the device. The device's weights die with the process: what it had not sent is
//! gone with a `kill -9`. What had come down is added by the next one (`GpuState`). A stop by
//! signal sends everything first.

mod adders;
mod solver;
mod syncer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::clock::{Clock, cpu_ns};
use super::pace::Pace;
use super::privileges::drop_privileges;
use super::solver_error::SolverError;
use crate::device::{Device, DeviceError};
use crate::solver::DeviceNetError;
use crate::watch::GpuMeter;
use crate::weights::{
    Damaged, Expect, GpuState, METERS, OpenError, Role, SharedWeights, Slot, SlotError, StateError,
};

use solver::{DeviceSolver, Segment};

pub use adders::Adding;
pub use solver::DeviceSolverJob;
pub use syncer::{ADDERS_MAX, Counts, GpuSyncer, slot_words};

/// Time between two publications of the counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// Longest sleep for the sake of a rate: a stop and the counters do not wait for a low one.
const NAP: Duration = PUBLISH_EVERY;

/// What a GPU component is started with.
#[derive(Clone, Debug)]
pub struct GpuJob {
    /// Path of the buffer.
    pub buffer: PathBuf,
    /// This component's number on this buffer, from 0.
    pub index: u32,
    /// How deltas get into the buffer.
    pub adding: Adding,
    /// Weights of a chunk; `None`: the fastest of some that are tried.
    pub chunk_weights: Option<usize>,
    /// Bytes per second that go up at most; `None`: as fast as it can.
    pub rate_bytes_per_s: Option<f64>,
    /// Write the handle of the device's weights to the file [`ipc_beside`].
    pub ipc: bool,
    /// The solver to run on the device, if any.
    pub solver: Option<DeviceSolverJob>,
}

/// Why a GPU component could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The buffer cannot be opened.
    #[error("{0}")]
    Buffer(#[from] OpenError),
    /// The component slot cannot be claimed.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The component's own state file.
    #[error("{0}")]
    State(#[from] StateError),
    /// The state file is damaged.
    #[error("{path}: {source}", path = path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        source: Damaged,
    },
    /// The device has failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
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

/// Runs the component on `device` until the buffer's stop switch or `stop` is set. This thread
/// gives up its capabilities.
///
/// # Errors
/// See [`GpuError`].
pub fn run_gpu<D: Device>(device: &D, job: &GpuJob, stop: &AtomicBool) -> Result<(), GpuError> {
    let shared = Arc::new(SharedWeights::open(&job.buffer, &Expect::default())?);
    let path = GpuState::path_beside(&job.buffer, job.index);
    let words = slot_words(shared.used());
    let open = || GpuState::open_or_create(&path, shared.id(), shared.used(), words);
    let (mut state, resumed) = open()?;
    let slot = shared.claim_slot(Role::Gpu, job.index)?;
    drop_privileges()?;
    // That of a component that was killed names memory that is gone.
    let _ = std::fs::remove_file(ipc_beside(&job.buffer, job.index));
    let recovered = state.recover(shared.view(), job.adding.writes);
    let recovered = recovered.map_err(|source| GpuError::Damaged {
        path: path.clone(),
        source,
    })?;
    if recovered > 0 {
        log::info!("{recovered} delta(s) of a killed GPU component added to the buffer");
    }
    GpuMeter::DeltasRecovered.add(slot.meters(), recovered as u64);
    if resumed && std::fs::remove_file(&path).is_ok() {
        // The device of a component that was killed may still write to the pages of its file.
        (state, _) = open()?;
    }
    let state = Arc::new(state);
    let mut syncer = GpuSyncer::new(device, &shared, &state, job.adding)?;
    choose_chunk(&mut syncer, job)?;
    let _shared_handle = match job.ipc {
        true => Some(publish_handle(device, &mut syncer, job)?),
        false => None,
    };
    log::info!(
        "{} holds {} weights of {} in chunks of {}",
        device.name(),
        shared.used(),
        job.buffer.display(),
        syncer.chunk()
    );
    let mut publisher = Publisher {
        base: slot.meters().each_ref().map(|word| word.load(Relaxed)),
        meters: slot.meters(),
        last: None,
    };
    let mut solver = match &job.solver {
        Some(solver) => Some(DeviceSolver::new(device, &shared, solver)?),
        None => None,
    };
    let trained = run_both(
        &mut syncer,
        solver.as_mut(),
        job,
        &mut publisher,
        &slot,
        stop,
    );
    // Everything that the device has done goes to the buffer before its memory goes.
    let flushed = flush(&mut syncer);
    publisher.publish(&syncer);
    trained.and(flushed.map_err(GpuError::from))
}

/// The syncer on this thread, the solver on one of its own, until one of them or the operator ends
/// it.
fn run_both<D: Device>(
    syncer: &mut GpuSyncer<D>,
    solver: Option<&mut DeviceSolver<D>>,
    job: &GpuJob,
    publisher: &mut Publisher<'_>,
    slot: &Slot<'_>,
    stop: &AtomicBool,
) -> Result<(), GpuError> {
    let shared = syncer.shared().clone();
    let (weights, stream) = (syncer.weights().clone(), syncer.stream().clone());
    let cycles = AtomicU64::new(0);
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let segment = Segment {
            shared: &shared,
            weights: &weights,
            stream: &*stream,
            cycles: &cycles,
        };
        let ending = &ending;
        let solver = solver.map(|solver| scope.spawn(move || solver.run(&segment, ending)));
        let over = || solver.as_ref().is_some_and(|thread| thread.is_finished());
        let clock = Clock::start();
        let mut pace = job.rate_bytes_per_s.map(Pace::new);
        // What went up to choose the chunk size is not counted.
        let before = syncer.counts().bytes_up;
        let mut synced = Ok(());
        while synced.is_ok()
            && !stop.load(Relaxed)
            && shared.globals().stop.load(Relaxed) == 0
            && !over()
        {
            let bytes = syncer.counts().bytes_up - before;
            let may = pace.as_mut().is_none_or(|pace| {
                let chunk_bytes = 4 * syncer.chunk();
                pace.frames(clock.now_ns(), bytes, chunk_bytes) > 0
            });
            if may {
                synced = syncer.step().map(drop);
                cycles.store(syncer.counts().cycles, Relaxed);
            } else if let Some(pace) = &pace {
                std::thread::sleep(pace.wait(1).min(NAP));
            }
            if publisher.is_due() {
                publisher.publish(syncer);
                slot.heartbeat();
            }
        }
        ending.store(true, Relaxed);
        let trained = solver.map_or(Ok(()), |thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        synced.map_err(GpuError::from).and(trained)
    })
}

fn flush<D: Device>(syncer: &mut GpuSyncer<D>) -> Result<(), DeviceError> {
    syncer.drain()?;
    syncer.set_chunk(syncer.chunk())?;
    syncer.cycle()?;
    syncer.drain()
}

/// The name of the file with the IPC handle of component `index` of the buffer `buffer`.
pub fn ipc_beside(buffer: &Path, index: u32) -> PathBuf {
    let mut name = GpuState::path_beside(buffer, index).into_os_string();
    name.push(".ipc");
    name.into()
}

/// Lets other programs find the device's weights, once all of them are there.
fn publish_handle<D: Device>(
    device: &D,
    syncer: &mut GpuSyncer<D>,
    job: &GpuJob,
) -> Result<IpcFile, GpuError> {
    syncer.cycle()?;
    syncer.drain()?;
    IpcFile::write(device, syncer, job)
}

/// The file with the IPC handle, which goes with the memory that it names.
struct IpcFile(PathBuf);

impl IpcFile {
    fn write<D: Device>(device: &D, syncer: &GpuSyncer<D>, job: &GpuJob) -> Result<Self, GpuError> {
        let handle = device.share(syncer.weights())?;
        // As text: JSON has no whole numbers of 64 bits.
        let buffer = format!("{:016x}", syncer.shared().identity());
        let text = serde_json::json!({
            "pid": std::process::id(),
            "buffer": buffer,
            "weights": handle,
        });
        let path = ipc_beside(&job.buffer, job.index);
        // Readers find a whole file or none.
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let done =
            std::fs::write(&new, format!("{text:#}\n")).and_then(|()| std::fs::rename(&new, &path));
        match done {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(GpuError::Ipc { path, source }),
        }
    }
}

impl Drop for IpcFile {
    fn drop(&mut self) {
        // If it stays, the driver tells a program that opens the handle that it is gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn choose_chunk<D: Device>(syncer: &mut GpuSyncer<D>, job: &GpuJob) -> Result<(), DeviceError> {
    if let Some(weights) = job.chunk_weights {
        return syncer.set_chunk(weights);
    }
    let tried = syncer.measure()?;
    let tried: Vec<String> = tried
        .iter()
        .map(|(size, rate)| format!("{size}: {:.2} GB/s", rate / 1e9))
        .collect();
    log::info!(
        "chunks of {} weights are fastest (up and down together: {})",
        syncer.chunk(),
        tried.join(", ")
    );
    Ok(())
}

/// Puts the counts where others see them.
struct Publisher<'a> {
    meters: &'a [AtomicU64; METERS],
    base: [u64; METERS],
    last: Option<Instant>,
}

impl Publisher<'_> {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= PUBLISH_EVERY)
    }

    fn publish<D: Device>(&mut self, syncer: &GpuSyncer<D>) {
        self.last = Some(Instant::now());
        let counts = syncer.counts();
        let totals = [
            (GpuMeter::Cycles, counts.cycles),
            (GpuMeter::Chunks, counts.chunks),
            (GpuMeter::BytesUp, counts.bytes_up),
            (GpuMeter::BytesDown, counts.bytes_down),
            (GpuMeter::DeltasApplied, counts.deltas),
            (GpuMeter::HealedWeights, counts.healed),
            (GpuMeter::WaitNs, counts.wait_ns),
        ];
        for (meter, total) in totals {
            meter.set(self.meters, self.base[meter as usize] + total);
        }
        GpuMeter::ChunkWeights.set(self.meters, syncer.chunk() as u64);
        GpuMeter::CpuNs.set(self.meters, self.base[GpuMeter::CpuNs as usize] + cpu_ns());
    }
}

#[cfg(test)]
mod tests;
