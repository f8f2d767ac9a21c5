//! What the Python package `dogwild` needs of the crate: the buffer, a solver's slot, counters.
//!
//! Thin on purpose: everything that is no memory and no lock is Python, in `python/dogwild`.
//! Invariants: no call waits; an error becomes an exception of `dogwild.errors`; an object that a
//! forked child has inherited changes nothing of its parent's.

mod buffer;
mod device;
mod errors;
mod log;
mod reliable;
mod solver;

use pyo3::prelude::*;

/// Session number of a job's name; the same on all nodes.
#[pyfunction]
fn session_number(name: &str) -> u64 {
    dogwild::weights::session_number(name)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log::begin();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<solver::Solver>()?;
    module.add_class::<device::DeviceWeights>()?;
    module.add_class::<reliable::Hosted>()?;
    module.add_class::<reliable::Worker>()?;
    module.add_function(wrap_pyfunction!(reliable::servers_of, module)?)?;
    module.add_function(wrap_pyfunction!(session_number, module)?)
}
