//! From one command to a running job on this machine: buffers, component processes, progress, report.
//!
//! Starts the component programs as separate processes and watches them through the counters in
//! the buffers and nothing else; restarts what died; cleans up after itself.

mod buffer;
mod children;
mod poseidon;
mod poseidon_summary;
mod progress;
mod results;
mod start;
mod summary;
mod train;

pub use buffer::{BufferError, BufferPlan, make_buffer};
pub use poseidon::{PoseidonPlan, train_poseidon};
pub use poseidon_summary::{PoseidonSummary, WorkerSummary};
pub use summary::{NodeSummary, Summary};
pub use train::{TrainPlan, train};
