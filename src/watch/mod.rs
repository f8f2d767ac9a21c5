//! What can be seen of a running job: counters in shared memory, learning curves.
//!
//! Names the counters of component slots ([`StreamMeter`], [`SolverMeter`], [`SyncMeter`]) and
//! holds learning curves ([`curve`]): their rows as CSV and their picture; folds tables to the
//! screen ([`screen`]). Changes no weights and no protocol state.

pub mod curve;
mod meters;
pub mod screen;

pub use meters::{DROPS_AT, GpuMeter, SolverMeter, StreamMeter, SyncMeter, drops};
