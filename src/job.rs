//! From one command to a running job on this machine: buffers, component processes, progress,
//! report.
//!
//! Starts the component programs as separate processes and watches them through the counters in
//! the buffers and nothing else; restarts what died; cleans up after itself.

mod boards;
mod buffer;
mod buffers;
mod children;
mod common;
mod conclude;
mod curves;
#[cfg(feature = "data-get")]
pub mod data_get;
mod earlier;
mod experiment;
mod fleet;
mod leave;
mod leftovers;
mod meeting;
mod memory;
pub mod metrics;
mod missing;
mod out;
mod outcome;
mod paces;
mod pauses;
mod plan;
mod poseidon;
mod poseidon_summary;
mod precision;
mod progress;
mod reached;
mod restarts;
mod restore;
mod results;
mod resume;
mod room;
mod run;
mod settle;
mod snapshot_every;
mod snapshot_record;
mod snapshots;
mod solvers;
mod start;
mod status;
mod stream_summary;
mod summary;
#[cfg(test)]
mod testing;
mod title;
#[cfg(feature = "top")]
pub mod top;
mod train;
mod warnings;
mod whole;
mod world;

pub use buffer::{BufferError, BufferPlan, make_buffer};
pub use buffers::node_buffer;
pub use common::{Common, Net, Pictures};
pub use conclude::{Ended, NotAsAsked};
pub use experiment::{Experiment, Host, json};
pub use leftovers::{Leftover, LeftoverState, Maker, age, leftovers, remove_buffer};
pub use meeting::{Card, Meeting, Place, Precision, Round, ask_for_a_seat};
pub use memory::{forget, has_memory, take_back};
pub use out::{DEFAULT_OUT, Old, OutError, OutFolder, is_in_use};
pub use outcome::{Outcome, codes};
pub use paces::Paces;
pub use pauses::Pause;
pub use plan::{Here, JobPlan, PathPlan, PoseidonPlan, StreamPlan};
pub use poseidon_summary::{PoseidonSummary, WorkerSummary};
pub use precision::{Load, Wish};
pub use progress::iterations_of;
pub use reached::{Level, Reached};
pub use resume::{Resume, last_run};
pub use run::run;
pub use snapshot_every::SnapshotEvery;
pub use solvers::Solvers;
pub use status::{ComponentStatus, Status, Value};
pub use stream_summary::{Ages, NodeSummary, StreamSummary};
pub use summary::{PathSummary, Summary};
pub use warnings::Warning;
pub use world::{Asked, Door, Seat, World, WorldError};
