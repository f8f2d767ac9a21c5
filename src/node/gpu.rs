//! The GPU component: keeps the weights of a device in step with the buffer, and trains on them if
//! asked.
//!
//! One thread runs the [`GpuSyncer`], another the device's solver, further ones add deltas. A stop
//! by signal sends everything first. A library has [`InStep`] alone, for a program that trains by
//! itself.

mod adders;
mod in_step;
mod syncer;

pub use adders::{Adding, usual_adders};
pub use in_step::{Claimed, HOST_RATE_BYTES_PER_S, InStep, OnDevice, SyncError, SyncJob};
pub use syncer::{ADDERS_MAX, Counts, GpuSyncer, slot_words};

cfg_if::cfg_if! {
    if #[cfg(feature = "program")] {
        mod component;
        mod ipc;
        mod solver;

        pub use component::{GpuError, GpuJob, run_gpu};
        pub use ipc::ipc_beside;
        pub use solver::DeviceSolverJob;
    }
}

#[cfg(all(test, feature = "program"))]
mod tests;
