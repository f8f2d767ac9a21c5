//! The slot of a program that trains on a buffer, as a Python object: it counts steps.

use std::sync::atomic::Ordering::Relaxed;

use dogwild::watch::SolverMeter;
use dogwild::weights::OwnedSlot;
use pyo3::prelude::*;

use crate::errors;

/// A solver's place on a buffer. It is free again when this object or its process ends.
#[pyclass(module = "dogwild._native")]
pub(crate) struct Solver {
    slot: Option<OwnedSlot>,
    process: u32,
}

impl Solver {
    pub(crate) fn new(slot: OwnedSlot) -> Self {
        // A solver that was killed may have left it.
        SolverMeter::Finished.set(slot.meters(), 0);
        Self {
            slot: Some(slot),
            process: std::process::id(),
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
