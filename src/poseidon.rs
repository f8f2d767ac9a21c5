//! Poseidon: the reliable path, layer by layer (Zhang et al. 2015 and 2017).
//!
//! For when every gradient must arrive. `protocol` holds the state machines. A [`Coordinator`]
//! keeps the description of the cluster. Servers hold the weights in KV pairs ([`KvStore`]). Each
//! worker has a [`Syncer`] per layer, which sends the layer's gradient, or its sufficient factors,
//! as soon as the backward pass has computed them. `runtime` drives them over TCP:
//! [`run_coordinator`], [`run_server`] and [`run_worker`] each run one process. A [`Client`] is a
//! worker in a program of your own, and what [`run_worker`] stands on. [`cost`] has the
//! traffic of each [`Scheme`], and the rules that choose one for a layer.
//!
//! `protocol` and `cost` do no I/O: messages, gradients and the solver's arithmetic are arguments.
//! `docs/reference/reliable-protocol.md` has the rules and the format of the messages.

pub mod cost;
mod protocol;
mod runtime;

pub use cost::{ClusterSize, LayerShape, Policy, Scheme};
pub use protocol::{
    Arithmetic, Bandwidth, Body, Book, Checkpoint, ClusterInfo, ClusterSpec, Completion,
    Contribution, Coordinator, Destination, Floats, HEADER_LEN, Header, KvStore, LayerSpec,
    MAX_TEXT, Made, Member, MemberHello, MemberRole, Message, MessageKind, ModelFile,
    ModelFileError, ModelLayer, ModelTensor, Next, PAIR_BYTES, Pair, PairSize, ParseError,
    Partition, Payload, Penalty, Plan, PlanError, PlanLayer, PlanTensor, Pool, Priority,
    ProtocolViolation, Reads, RecordedLayer, Recording, RecordingError, Refusal, RoundError, Saved,
    Schedule, Sizes, StepError, StepRule, StepSpec, Stragglers, Syncer, VERSION, state_name,
};
#[cfg(feature = "program")]
pub(crate) use runtime::secured;
pub use runtime::{
    ANOTHER_FAILED, CaffeModel, CheckpointError, CheckpointFolder, Claims, Client, ClientJob,
    ClusterKey, CoordinatorJob, First, LayerTraffic, MemberJob, ModelJob, Overlap, OwnReplica,
    PoseidonError, Replica, Resumed, ServerJob, Step, StepInput, TrafficReport, Turn, WorkerJob,
    common_clocks, run_coordinator, run_server, run_worker, step_of,
};
