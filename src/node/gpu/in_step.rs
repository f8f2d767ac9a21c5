//! A component with a device: its places on a buffer, and the loop that keeps the two in step.
//!
//! Waits for nothing but the device. [`Claimed`] has the files and the slot, before anything of a
//! device is opened; [`InStep`] has the device's weights. These die with the process: what it had
//! not sent is gone with a `kill -9`. What had come down is added by the next one ([`GpuState`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::clock::{Clock, cpu_ns};
use super::super::pace::Pace;
use super::adders::Adding;
use super::syncer::{GpuSyncer, slot_words};
use crate::device::{Device, DeviceError};
use crate::watch::GpuMeter;
use crate::weights::{
    Damaged, Expect, GpuState, METERS, OpenError, OwnedSlot, Role, SharedWeights, SlotError,
    StateError,
};

/// Time between two publications of the counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// Longest sleep for the sake of a rate: a stop and the counters do not wait for a low one.
const NAP: Duration = PUBLISH_EVERY;

/// Bytes per second that go up to a host device unless told otherwise: it shares the processor with
/// the solvers.
pub const HOST_RATE_BYTES_PER_S: f64 = 500e6;

/// What a buffer and a device are kept in step with.
#[derive(Clone, Debug)]
pub struct SyncJob {
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
}

/// Why a buffer and a device are not kept in step.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
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
}

/// The places of a component: the buffer, its slot there, and its state file.
pub struct Claimed {
    job: SyncJob,
    shared: Arc<SharedWeights>,
    slot: OwnedSlot,
    path: PathBuf,
    state: GpuState,
    resumed: bool,
}

impl Claimed {
    /// Opens them.
    ///
    /// # Errors
    /// The buffer or the state file cannot be opened, or another component has them.
    pub fn of(job: &SyncJob) -> Result<Self, SyncError> {
        let shared = Arc::new(SharedWeights::open(&job.buffer, &Expect::default())?);
        let path = GpuState::path_beside(&job.buffer, job.index);
        let (state, resumed) = open_state(&path, &shared)?;
        let slot = shared.claim_owned_slot(Role::Gpu, job.index)?;
        Ok(Self {
            job: job.clone(),
            shared,
            slot,
            path,
            state,
            resumed,
        })
    }

    /// The buffer.
    #[cfg(feature = "program")]
    pub fn shared(&self) -> &Arc<SharedWeights> {
        &self.shared
    }

    /// Brings all weights to `device`, after what a component that was killed has left is added.
    ///
    /// # Errors
    /// The state file is damaged, or the device has failed.
    pub fn start<D: Device>(self, device: &D) -> Result<InStep<D>, SyncError> {
        let Self {
            job,
            shared,
            slot,
            path,
            mut state,
            resumed,
        } = self;
        let recovered = state.recover(shared.view(), job.adding.writes);
        let recovered = recovered.map_err(|source| SyncError::Damaged {
            path: path.clone(),
            source,
        })?;
        if recovered > 0 {
            log::info!("{recovered} delta(s) of a killed GPU component added to the buffer");
        }
        GpuMeter::DeltasRecovered.add(slot.meters(), recovered as u64);
        if resumed && std::fs::remove_file(&path).is_ok() {
            // The device of a component that was killed may still write to the pages of its file.
            (state, _) = open_state(&path, &shared)?;
        }
        let mut syncer = GpuSyncer::new(device, &shared, &Arc::new(state), job.adding)?;
        choose_chunk(&mut syncer, job.chunk_weights)?;
        // Who is given the weights finds all of them.
        syncer.cycle()?;
        syncer.drain()?;
        log::info!(
            "{} holds {} weights of {} in chunks of {}",
            device.name(),
            shared.used(),
            job.buffer.display(),
            syncer.chunk()
        );
        let publisher = Publisher {
            base: slot.meters().each_ref().map(|word| word.load(Relaxed)),
            slot,
            last: None,
        };
        let lent = OnDevice {
            weights: syncer.weights().clone(),
            stream: syncer.stream().clone(),
            cycles: Arc::new(AtomicU64::new(syncer.counts().cycles)),
        };
        Ok(InStep {
            rate_bytes_per_s: job.rate_bytes_per_s,
            shared,
            syncer,
            publisher,
            lent,
        })
    }
}

fn open_state(path: &Path, shared: &SharedWeights) -> Result<(GpuState, bool), StateError> {
    let words = slot_words(shared.used());
    GpuState::open_or_create(path, shared.id(), shared.used(), words)
}

/// The device's weights of a component, for what trains on them.
pub struct OnDevice<D: Device> {
    /// The weights, at the offsets of the buffer's manifest.
    pub weights: D::Memory,
    /// The stream that takes positions: what is put here does not race with that.
    pub stream: Arc<D::Stream>,
    /// Passes over the weights so far. Once three more were made, the buffer has all that the
    /// device had, and the device all that the buffer had.
    pub cycles: Arc<AtomicU64>,
}

/// A buffer and a device that holds its weights.
pub struct InStep<D: Device> {
    rate_bytes_per_s: Option<f64>,
    shared: Arc<SharedWeights>,
    syncer: GpuSyncer<D>,
    publisher: Publisher,
    lent: OnDevice<D>,
}

impl<D: Device> InStep<D> {
    /// The device's weights.
    pub fn on_device(&self) -> &OnDevice<D> {
        &self.lent
    }

    /// Keeps the two in step until the buffer's stop switch or `stop` is set, or it is `over`.
    ///
    /// # Errors
    /// The device has failed.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut over: impl FnMut() -> bool,
    ) -> Result<(), DeviceError> {
        let clock = Clock::start();
        let mut pace = self.rate_bytes_per_s.map(Pace::new);
        // What went up to choose the chunk size is not counted.
        let before = self.syncer.counts().bytes_up;
        while !stop.load(Relaxed) && self.shared.globals().stop.load(Relaxed) == 0 && !over() {
            let bytes = self.syncer.counts().bytes_up - before;
            let may = pace.as_mut().is_none_or(|pace| {
                let chunk_bytes = 4 * self.syncer.chunk();
                pace.frames(clock.now_ns(), bytes, chunk_bytes) > 0
            });
            if may {
                self.syncer.step()?;
                self.lent.cycles.store(self.syncer.counts().cycles, Relaxed);
            } else if let Some(pace) = &pace {
                std::thread::sleep(pace.wait(1).min(NAP));
            }
            if self.publisher.is_due() {
                self.publisher.publish(&self.syncer);
            }
        }
        Ok(())
    }

    /// Gives the buffer everything that the device has done, before its memory goes.
    ///
    /// # Errors
    /// The device has failed.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        let syncer = &mut self.syncer;
        let mut pass = || {
            syncer.drain()?;
            syncer.set_chunk(syncer.chunk())?;
            syncer.cycle()?;
            syncer.drain()
        };
        let flushed = pass();
        self.publisher.publish(&self.syncer);
        flushed
    }
}

fn choose_chunk<D: Device>(
    syncer: &mut GpuSyncer<D>,
    weights: Option<usize>,
) -> Result<(), DeviceError> {
    if let Some(weights) = weights {
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
struct Publisher {
    slot: OwnedSlot,
    base: [u64; METERS],
    last: Option<Instant>,
}

impl Publisher {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= PUBLISH_EVERY)
    }

    fn publish<D: Device>(&mut self, syncer: &GpuSyncer<D>) {
        self.last = Some(Instant::now());
        self.slot.heartbeat();
        let meters = self.slot.meters();
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
            meter.set(meters, self.base[meter as usize] + total);
        }
        GpuMeter::ChunkWeights.set(meters, syncer.chunk() as u64);
        GpuMeter::CpuNs.set(meters, self.base[GpuMeter::CpuNs as usize] + cpu_ns());
    }
}
