//! The slot of a program that trains on a buffer, as a Python object: it counts steps, and walks
//! ahead with them.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use dogwild::solver::{Cluster, Crew, walk_ahead};
use dogwild::watch::SolverMeter;
use dogwild::weights::OwnedSlot;
use pyo3::prelude::*;

use crate::errors;

/// The first weight, that behind the last one, and how often a step is added there.
type Part = (usize, usize, f32);

/// A solver's place on a buffer. It is free again when this object or its process ends.
#[pyclass(module = "dogwild._native")]
pub(crate) struct Solver {
    slot: Option<OwnedSlot>,
    process: u32,
    crew: Crew,
}

impl Solver {
    pub(crate) fn new(slot: OwnedSlot) -> Self {
        // A solver that was killed may have left it.
        SolverMeter::Finished.set(slot.meters(), 0);
        Self {
            slot: Some(slot),
            process: std::process::id(),
            crew: Crew::default(),
        }
    }

    fn slot(&self) -> PyResult<&OwnedSlot> {
        if self.process != std::process::id() {
            let text = "this process was forked from the one that shares the model: \
                        call share() in it, with another index";
            return Err(errors::raise("DogwildError", text.into()));
        }
        let left = || errors::raise("DogwildError", "this solver has left its buffer".into());
        self.slot.as_ref().ok_or_else(left)
    }

    /// What the streamer says of the cluster now, and how many step here.
    fn cluster(&mut self) -> PyResult<Cluster> {
        let slot = self.slot()?;
        let own = slot.meters()[SolverMeter::Iterations as usize].load(Relaxed);
        let all = slot.buffer().globals().local_iterations.load(Relaxed);
        self.crew.note(own, all);
        Ok(Cluster::of(self.slot()?.buffer(), &self.crew))
    }
}

#[pymethods]
impl Solver {
    /// Counts an iteration. Returns the iterations of the cluster, as far as known.
    fn step(&self) -> PyResult<u64> {
        let slot = self.slot()?;
        let globals = slot.buffer().globals();
        SolverMeter::Finished.set(slot.meters(), 0);
        SolverMeter::Iterations.add(slot.meters(), 1);
        globals.local_iterations.fetch_add(1, Relaxed);
        slot.heartbeat();
        Ok(globals.iterations())
    }

    /// Adds the step that an optimiser made in a copy of the weights, longer by the stride, which
    /// is returned. `before` and `after`: addresses of as many weights as the buffer has, gaps
    /// included. `after` is used up.
    fn walk_ahead(&mut self, py: Python<'_>, before: usize, after: usize) -> PyResult<f32> {
        let cluster = self.cluster()?;
        let slot = self.slot()?;
        let shared = slot.buffer();
        let len = shared.used();
        let weights = shared.view().slice(0, len);
        // SAFETY: as the caller says; it keeps both tensors meanwhile, and nothing else uses them.
        let (before, after) = unsafe {
            (
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(before), len),
                std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(after), len),
            )
        };
        let stride = py.detach(|| walk_ahead(weights, before, after, &cluster));
        SolverMeter::StrideBits.set(slot.meters(), u64::from(stride.to_bits()));
        Ok(stride)
    }

    /// For a step whose squares, and those of the weights, have these sums: the stride, and how
    /// often the step is to be added from one weight to before another one.
    fn stride_over(&mut self, weights: f64, step: f64) -> PyResult<(f32, Vec<Part>)> {
        let cluster = self.cluster()?;
        let slot = self.slot()?;
        let all = 0..slot.buffer().used();
        let (stride, parts) = cluster.stride_over(all, weights, step);
        SolverMeter::StrideBits.set(slot.meters(), u64::from(stride.to_bits()));
        let parts = parts.into_iter().filter(|(part, _)| !part.is_empty());
        let parts = parts.map(|(part, factor)| (part.start, part.end, factor));
        Ok((stride, parts.collect()))
    }

    /// What this node's work counts for: its portion of the cluster's iterations, above 0, at most
    /// 1. It is 1 where the node is alone, or all work is added up.
    #[getter]
    fn portion(&self) -> PyResult<f32> {
        Ok(self.slot()?.buffer().globals().portion())
    }

    /// Says that this solver adds nothing more, until its next step.
    fn finish(&self) -> PyResult<()> {
        let slot = self.slot()?;
        // One more than iterations ever were: another number each time.
        let iterations = &slot.meters()[SolverMeter::Iterations as usize];
        let with = iterations.load(Relaxed).wrapping_add(1);
        SolverMeter::Finished.set(slot.meters(), with);
        Ok(())
    }

    /// Iterations of this solver, those before a restart included.
    #[getter]
    fn iterations(&self) -> PyResult<u64> {
        let meter = &self.slot()?.meters()[SolverMeter::Iterations as usize];
        Ok(meter.load(Relaxed))
    }

    /// Leaves the buffer.
    fn release(&mut self) {
        self.slot = None;
    }
}
