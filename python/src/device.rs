//! The weights of a buffer on a device, as a Python object: a GPU that PyTorch computes on, or the
//! host device.
//!
//! A thread keeps them in step with the buffer, as `dogwild gpu` does in a process of its own. The
//! driver's context is the one that PyTorch has, so its tensors may lie in this memory, and its
//! work may go on this stream. Invariants: the memory lives as long as the object. No call of the
//! driver is made on a thread of the interpreter, whose current GPU would change. A forked child
//! touches nothing.

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use dogwild::device::cuda::CudaDevice;
use dogwild::device::host::HostDevice;
use dogwild::device::{Device, Memory, Stream};
use dogwild::node::{
    Adding, Claimed, HOST_RATE_BYTES_PER_S, OnDevice, SyncError, SyncJob, usual_adders,
};
use dogwild::weights::{SlotError, StateError, Writes};
use pyo3::prelude::*;

use crate::errors;

/// What the thread lends once all weights are on the device.
struct Lent {
    address: u64,
    words: usize,
    stream: Option<usize>,
    cycles: Arc<AtomicU64>,
    /// Memory and stream themselves.
    held: Box<dyn Any + Send + Sync>,
}

impl Lent {
    fn of<D: Device>(on: &OnDevice<D>) -> Self {
        Self {
            address: on.weights.address(),
            words: on.weights.len(),
            stream: on.stream.handle(),
            cycles: on.cycles.clone(),
            held: Box::new((on.weights.clone(), on.stream.clone())),
        }
    }
}

/// Why the thread has ended: class of the exception, and text.
type Failed = Arc<OnceLock<(&'static str, String)>>;

/// The weights of a buffer on a device.
#[pyclass(module = "dogwild._native", frozen)]
pub(crate) struct DeviceWeights {
    lent: Option<Lent>,
    stop: Arc<AtomicBool>,
    failed: Failed,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

#[pymethods]
impl DeviceWeights {
    /// Brings the weights of the buffer `path` to a device, and keeps them in step from now on.
    /// `ordinal`: the number that CUDA's driver has for the GPU; `None`: the host device. `index`:
    /// of all components with a device on this buffer.
    #[staticmethod]
    fn start(py: Python<'_>, path: PathBuf, ordinal: Option<usize>, index: u32) -> PyResult<Self> {
        let (lend, here) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let failed = Failed::default();
        let job = job(path, ordinal, index);
        let thread = {
            let (stop, failed) = (stop.clone(), failed.clone());
            let name = "dogwild-device".to_owned();
            std::thread::Builder::new().name(name).spawn(move || {
                if let Err(error) = run(ordinal, &job, &stop, &lend) {
                    let _ = failed.set((class(&error), error.to_string()));
                }
            })
        };
        let thread = thread.map_err(|why| {
            let text = format!("no thread for the device can be started: {why}");
            errors::raise("DogwildError", text)
        })?;
        let lent = py.detach(move || here.recv().ok());
        let made = Self {
            lent,
            stop,
            failed,
            thread: Some(thread).into(),
            process: std::process::id(),
        };
        if made.lent.is_none() {
            made.stop(py);
            made.check()?;
        }
        Ok(made)
    }

    /// Raises what has ended the thread, if something has.
    fn check(&self) -> PyResult<()> {
        match self.failed.get() {
            Some((class, text)) => Err(errors::raise(class, text.clone())),
            None => Ok(()),
        }
    }

    /// Address of the first weight on the device.
    #[getter]
    fn address(&self) -> u64 {
        self.lent.as_ref().map_or(0, |lent| lent.address)
    }

    /// Weights, the gaps between tensors included.
    fn __len__(&self) -> usize {
        self.lent.as_ref().map_or(0, |lent| lent.words)
    }

    /// The driver's stream that takes positions: a step that is put on it does not race with that.
    /// `None` on the host device.
    #[getter]
    fn stream(&self) -> Option<usize> {
        self.lent.as_ref()?.stream
    }

    /// Passes over the weights so far. Once three more were made, the buffer has all that was on
    /// the device, and the device all that was in the buffer.
    #[getter]
    fn cycles(&self) -> u64 {
        let lent = self.lent.as_ref();
        lent.map_or(0, |lent| lent.cycles.load(Relaxed))
    }

    /// Whether the thread has ended: the buffer's stop switch ends it too.
    #[getter]
    fn ended(&self) -> bool {
        let thread = self.thread.lock();
        thread.is_ok_and(|thread| thread.as_ref().is_none_or(JoinHandle::is_finished))
    }

    /// Ends the thread, after all that the device has is in the buffer. The memory stays.
    fn stop(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            self.stop.store(true, Relaxed);
            let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
            py.detach(|| thread.map(JoinHandle::join));
        }
    }
}

impl Drop for DeviceWeights {
    fn drop(&mut self) {
        let (lent, thread) = (self.lent.take(), self.thread.get_mut());
        let thread = thread.ok().and_then(Option::take);
        if self.process != std::process::id() {
            // The parent's.
            std::mem::forget((lent, thread));
            return;
        }
        self.stop.store(true, Relaxed);
        let held = lent.map(|lent| lent.held);
        // If no thread can be started, the closure is dropped here.
        let end = std::thread::Builder::new().name("dogwild-free".into());
        let end = end.spawn(move || {
            let _ = thread.map(JoinHandle::join);
            drop(held);
        });
        drop(end);
    }
}

fn job(buffer: PathBuf, ordinal: Option<usize>, index: u32) -> SyncJob {
    SyncJob {
        buffer,
        index,
        adding: Adding {
            writes: Writes::Racy,
            threads: usual_adders(),
        },
        chunk_weights: None,
        rate_bytes_per_s: ordinal.is_none().then_some(HOST_RATE_BYTES_PER_S),
    }
}

fn run(
    ordinal: Option<usize>,
    job: &SyncJob,
    stop: &AtomicBool,
    lend: &Sender<Lent>,
) -> Result<(), SyncError> {
    match ordinal {
        Some(ordinal) => {
            let device = CudaDevice::open_next_to_another(ordinal)?;
            run_on(&device, job, stop, lend)
        }
        None => run_on(&HostDevice::new(job.index as usize), job, stop, lend),
    }
}

fn run_on<D: Device>(
    device: &D,
    job: &SyncJob,
    stop: &AtomicBool,
    lend: &Sender<Lent>,
) -> Result<(), SyncError> {
    let mut in_step = Claimed::of(job)?.start(device)?;
    let _ = lend.send(Lent::of(in_step.on_device()));
    let ran = in_step.run(stop, || false);
    let flushed = in_step.flush();
    Ok(ran.and(flushed)?)
}

fn class(error: &SyncError) -> &'static str {
    match error {
        SyncError::Slot(SlotError::Held { .. }) | SyncError::State(StateError::InUse { .. }) => {
            "BufferInUse"
        }
        SyncError::State(StateError::NoSpace { .. }) => "NoSpace",
        _ => "DogwildError",
    }
}
