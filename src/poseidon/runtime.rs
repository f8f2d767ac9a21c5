//! Poseidon over TCP: coordinator, servers and workers as processes.
//!
//! Drives the state machines of `protocol` with blocking sockets: one thread reads a connection,
//! another writes it. If one member fails, all members end with a message that names it, so that
//! no member waits forever for a dead one. Members that are started again with `resume` go on from
//! the newest checkpoint that all of them have.

mod arithmetic;
mod budget;
mod checkpoint;
mod client;
mod connect;
mod coordinator;
mod error;
mod join;
mod link;
mod member;
mod model;
mod queue;
mod reception;
mod secure;
mod server;
mod shutdown;
mod step;
mod sync;
mod traffic;
mod unacknowledged;
mod worker;

pub use checkpoint::{CheckpointError, CheckpointFolder, common_clocks};
pub use client::{Claims, Client, ClientJob, First, OwnReplica, Replica, Resumed, Turn};
pub use coordinator::{CoordinatorJob, run_coordinator};
pub use error::{ANOTHER_FAILED, PoseidonError};
pub use member::MemberJob;
pub use model::{CaffeModel, ModelJob};
pub use secure::ClusterKey;
#[cfg(feature = "program")]
pub(crate) use secure::secured;
pub use server::{ServerJob, run_server};
pub use step::{Step, StepInput, step_of};
pub use traffic::{LayerTraffic, TrafficReport};
pub use worker::{Overlap, WorkerJob, run_worker};
