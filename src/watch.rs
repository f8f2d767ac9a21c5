//! What can be seen of a running job: counters in shared memory, learning curves.
//!
//! Names the counters of component slots ([`StreamMeter`], [`SolverMeter`], [`SyncMeter`]) and of
//! other nodes ([`PeerMeter`]). Holds learning curves ([`curve`]), their rows as CSV and their
//! picture, and event files for TensorBoard ([`board`]). Folds tables and text to the screen
//! ([`screen`], [`wrap`]). Changes no weights and no protocol state.

#[cfg(feature = "program")]
pub mod board;
#[cfg(any(feature = "caffe", feature = "plots"))]
pub mod curve;
mod meters;
#[cfg(feature = "program")]
pub mod screen;
#[cfg(feature = "plots")]
pub mod wrap;

pub use meters::{
    DROPS_AT, Described, GpuMeter, Kind, PeerMeter, SolverMeter, StreamMeter, SyncMeter, drops,
    finished_of,
};
