//! The buffer of a node as a Python object: names, shapes, memory, counters.
//!
//! Touches the buffer's file. Invariant: the memory that the buffer protocol hands out stays mapped
//! for as long as an array or tensor over it lives, since each holds the object.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dogwild::watch::{SolverMeter, StreamMeter, finished_of};
use dogwild::weights::{
    BufferSpec, Created, DataKind, Existing, Expect, Initialising, Manifest, Role, SharedWeights,
    SlotInfo, WeightsView,
};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::solver::Solver;

/// A buffer, or a new one whose weights are still to be set.
enum State {
    New(Option<Box<Initialising>>),
    Ready(Arc<SharedWeights>),
}

/// The buffer of one node: a file in /dev/shm that holds all weights as float32.
#[pyclass(module = "dogwild._native")]
pub(crate) struct Buffer {
    state: State,
    path: PathBuf,
    created: bool,
    /// First byte and bytes of the weights that the model uses.
    memory: (usize, usize),
}

impl Buffer {
    fn ready_one(shared: SharedWeights, path: PathBuf) -> Self {
        Self {
            memory: memory(shared.view(), shared.used()),
            state: State::Ready(Arc::new(shared)),
            path,
            created: false,
        }
    }

    fn shared(&self) -> PyResult<&Arc<SharedWeights>> {
        match &self.state {
            State::Ready(shared) => Ok(shared),
            State::New(_) => {
                let text = "the weights of this new buffer are not set yet: call publish() first";
                Err(errors::raise("DogwildError", text.into()))
            }
        }
    }

    fn stream_slot(&self) -> PyResult<Option<SlotInfo>> {
        let slots = self.shared()?.slots().into_iter();
        let mut streams: Vec<_> = slots.filter(|slot| slot.role == Role::Stream).collect();
        // The one at work, else the one that was last.
        streams.sort_by_key(|slot| (slot.alive, slot.started_unix_ns));
        Ok(streams.pop())
    }
}

fn memory(view: WeightsView<'_>, used: usize) -> (usize, usize) {
    (view.as_ptr().addr(), used * size_of::<f32>())
}

fn model(tensors: Vec<(String, Vec<usize>)>) -> PyResult<Manifest> {
    Manifest::new(tensors).map_err(|error| errors::raise("NotShareable", error.to_string()))
}

#[pymethods]
impl Buffer {
    /// Makes the buffer `path`, or deals with the one that is there as `existing` says: "resume",
    /// "fresh" or "refuse". `tensors`: name and shape of each, in order.
    #[staticmethod]
    fn create(
        path: PathBuf,
        session: u64,
        tensors: Vec<(String, Vec<usize>)>,
        existing: &str,
    ) -> PyResult<Self> {
        let existing = match existing {
            "resume" => Existing::Resume,
            "fresh" => Existing::Fresh,
            "refuse" => Existing::Refuse,
            other => {
                let text = format!("existing={other:?}: give \"resume\", \"fresh\" or \"refuse\"");
                return Err(PyValueError::new_err(text));
            }
        };
        let spec = BufferSpec {
            session,
            manifest: model(tensors)?,
            data: DataKind::default(),
        };
        let made = SharedWeights::create(&path, &spec, existing);
        match made.map_err(|error| errors::create(&error))? {
            Created::Resumed(shared) => Ok(Self::ready_one(shared, path)),
            Created::New(new) => Ok(Self {
                memory: memory(new.view(), new.manifest().len()),
                state: State::New(Some(Box::new(new))),
                path,
                created: true,
            }),
        }
    }

    /// Opens the buffer `path`.
    #[staticmethod]
    fn open(path: PathBuf) -> PyResult<Self> {
        let shared = SharedWeights::open(&path, &Expect::default());
        let shared = shared.map_err(|error| errors::open(&error))?;
        Ok(Self::ready_one(shared, path))
    }

    /// The weights of a new buffer are set: lets other processes open it.
    fn publish(&mut self) {
        if let State::New(new) = &mut self.state
            && let Some(new) = new.take()
        {
            self.state = State::Ready(Arc::new((*new).ready()));
        }
    }

    /// Tells solvers of this buffer that they may start: there is no streamer to do so.
    fn start_alone(&self) -> PyResult<()> {
        self.shared()?.globals().ready.store(1, Relaxed);
        Ok(())
    }

    /// Whether this call made the file.
    #[getter]
    fn created(&self) -> bool {
        self.created
    }

    /// Path of the file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Address of the first weight in this process.
    #[getter]
    fn address(&self) -> usize {
        self.memory.0
    }

    /// Weights, the gaps between tensors included.
    fn __len__(&self) -> usize {
        self.memory.1 / size_of::<f32>()
    }

    /// Session number of the job.
    #[getter]
    fn session(&self) -> PyResult<u64> {
        Ok(self.shared()?.session())
    }

    /// Hash of names, shapes and offsets of the tensors.
    #[getter]
    fn fingerprint(&self) -> PyResult<u64> {
        Ok(self.shared()?.fingerprint())
    }

    /// Name, shape and offset (in weights) of each tensor, in order.
    fn tensors(&self) -> Vec<(String, Vec<usize>, usize)> {
        let manifest = match &self.state {
            State::Ready(shared) => shared.manifest(),
            State::New(Some(new)) => new.manifest(),
            State::New(None) => return Vec::new(),
        };
        let tensors = manifest.tensors().iter();
        tensors
            .map(|one| (one.name.clone(), one.shape.clone(), one.offset))
            .collect()
    }

    /// Whether the buffer began with the weights at this address: as many as it has, gaps included.
    fn began_with(&self, address: usize) -> PyResult<bool> {
        let shared = self.shared()?;
        let at = std::ptr::with_exposed_provenance(address);
        // SAFETY: as the caller says; it keeps the tensor meanwhile.
        let weights = unsafe { std::slice::from_raw_parts(at, shared.used()) };
        Ok(shared.began_with(weights))
    }

    /// When the file was made, seconds since 1970.
    #[getter]
    fn created_at(&self) -> PyResult<f64> {
        Ok(self.shared()?.created_unix_ns() as f64 / 1e9)
    }

    /// Iterations of this node, and of all other nodes as far as known.
    fn iterations(&self) -> PyResult<(u64, u64)> {
        let globals = self.shared()?.globals();
        Ok((
            globals.local_iterations.load(Relaxed),
            globals.remote_iterations.load(Relaxed),
        ))
    }

    /// Whether solvers may start: the streamer has seen all weights.
    #[getter]
    fn is_ready(&self) -> PyResult<bool> {
        Ok(self.shared()?.globals().ready.load(Relaxed) != 0)
    }

    /// Whether all components of this node are to end.
    #[getter]
    fn stop(&self) -> PyResult<bool> {
        Ok(self.shared()?.globals().stop.load(Relaxed) != 0)
    }

    #[setter]
    fn set_stop(&self, stop: bool) -> PyResult<()> {
        self.shared()?.globals().stop.store(stop.into(), Relaxed);
        Ok(())
    }

    /// Components that ever worked on this buffer: role, index, process (0: it has left), and
    /// whether that lives.
    fn components(&self) -> PyResult<Vec<(String, u32, u32, bool)>> {
        let slots = self.shared()?.slots().into_iter();
        Ok(slots
            .map(|slot| (slot.role.to_string(), slot.index, slot.pid, slot.alive))
            .collect())
    }

    /// Counters of the streamer by name; empty if there never was one.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        if let Some(slot) = self.stream_slot()? {
            for meter in StreamMeter::ALL {
                dict.set_item(meter.name(), meter.of(&slot.meters))?;
            }
        }
        Ok(dict)
    }

    /// How far the node is since all its solvers have finished, as its streamer says it: 0 to 3,
    /// chunks that may be under way, and a bit for each node that has not settled. `None`: it has
    /// not said it yet.
    fn settled(&self) -> PyResult<Option<(u64, u64, u64)>> {
        let slots = self.shared()?.slots().into_iter();
        let solvers = slots.filter(|slot| slot.role == Role::Solver && slot.alive);
        let with = finished_of(solvers.map(|slot| SolverMeter::Finished.of(&slot.meters)));
        let said = |slot: &SlotInfo| {
            slot.alive && with != 0 && StreamMeter::FinishedWith.of(&slot.meters) == with
        };
        Ok(self.stream_slot()?.filter(said).map(|slot| {
            let of = |meter: StreamMeter| meter.of(&slot.meters);
            (
                of(StreamMeter::Settled),
                of(StreamMeter::UndeliveredChunks),
                of(StreamMeter::UnsettledNodes),
            )
        }))
    }

    /// Indices of the solvers of this node that live and have not finished.
    fn unfinished(&self) -> PyResult<Vec<u32>> {
        let slots = self.shared()?.slots().into_iter();
        let works = |slot: &SlotInfo| {
            slot.role == Role::Solver && slot.alive && SolverMeter::Finished.of(&slot.meters) == 0
        };
        Ok(slots.filter(works).map(|slot| slot.index).collect())
    }

    /// Makes 0.0 of each weight that is -0.0, which replicas could not be equal with. Returns how
    /// many there were.
    fn normalise(&self) -> PyResult<usize> {
        let shared = self.shared()?;
        let view = shared.view();
        // Exchanged: a weight that the streamer writes meanwhile keeps what it wrote.
        let minus_zero = (-0.0f32).to_bits();
        let was = |i: &usize| {
            let word = view.word(*i);
            word.load(Relaxed) == minus_zero
                && word
                    .compare_exchange(minus_zero, 0, Relaxed, Relaxed)
                    .is_ok()
        };
        Ok((0..shared.used()).filter(was).count())
    }

    /// Claims the slot of solver `index`.
    fn claim_solver(&self, index: u32) -> PyResult<Solver> {
        let slot = self.shared()?.claim_owned_slot(Role::Solver, index);
        Ok(Solver::new(slot.map_err(|error| errors::slot(&error))?))
    }

    /// # Safety
    /// Called by the interpreter alone, with a view to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let memory = slf.borrow().memory;
        // SAFETY: `view` is the interpreter's. The memory is mapped for as long as `slf` lives.
        // Other processes write to it at any time: arrays and tensors over it read what is there
        // at that moment, as any foreign code does.
        unsafe { expose(slf.as_any(), memory, view, flags) }
    }
}

/// Fills `view` with memory of `owner` (address and bytes), of which it gets a reference.
///
/// # Safety
/// `view` is one that the interpreter wants filled; the memory lives as long as `owner`.
pub(crate) unsafe fn expose(
    owner: &Bound<'_, PyAny>,
    (at, bytes): (usize, usize),
    view: *mut ffi::Py_buffer,
    flags: std::ffi::c_int,
) -> PyResult<()> {
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: as the caller says.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), at, bytes as ffi::Py_ssize_t, 0, flags)
    };
    if filled == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(owner.py()))
    }
}
