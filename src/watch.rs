//! What can be seen of a running job: counters in shared memory, learning curves.
//!
//! Names the counters of component slots ([`StreamMeter`], [`SolverMeter`], [`SyncMeter`]) and
//! holds learning curves ([`curve`]): their rows as CSV and their picture; folds tables and text to
//! the screen ([`screen`], [`wrap`]). Changes no weights and no protocol state.

#[cfg(any(feature = "caffe", feature = "plots"))]
pub mod curve;
mod meters;
#[cfg(feature = "program")]
pub mod screen;
#[cfg(feature = "plots")]
pub mod wrap;

pub use meters::{DROPS_AT, GpuMeter, SolverMeter, StreamMeter, SyncMeter, drops, finished_of};
