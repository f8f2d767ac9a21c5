//! The reliable path as state machines: messages in, messages out.
//!
//! May touch weights through a view, and bytes. No sockets, no clocks, no threads, no random
//! numbers and no solver: its arithmetic is an argument ([`Arithmetic`]). `runtime` drives these
//! state machines over TCP; `docs/reference/reliable-protocol.md` has the protocol.

mod ahead;
mod arithmetic;
mod bandwidth;
mod book;
mod completion;
mod coordinator;
mod message;
mod model_file;
mod onebit;
mod plan;
mod replay;
mod rounds;
mod step;
mod store;
mod syncer;
mod violation;

pub use ahead::Reads;
pub use arithmetic::Arithmetic;
pub use bandwidth::{Bandwidth, Next, Priority};
pub use book::Book;
pub use completion::Completion;
pub use coordinator::{ClusterInfo, Coordinator, Member, MemberHello, MemberRole, Refusal};
pub use message::{
    Body, Floats, HEADER_LEN, Header, MAX_TEXT, Message, MessageKind, PairSize, ParseError,
    Payload, Pool, Sizes, VERSION,
};
pub use model_file::{ModelFile, ModelFileError, ModelLayer, ModelTensor};
pub use plan::{
    ClusterSpec, LayerSpec, PAIR_BYTES, Pair, Partition, Plan, PlanError, PlanLayer, PlanTensor,
    Stragglers,
};
pub use replay::{RecordedLayer, Recording, RecordingError};
pub use rounds::RoundError;
pub use step::{Penalty, Schedule, StepError, StepRule, StepSpec, state_name};
pub use store::{Checkpoint, KvStore, Made, Saved};
pub use syncer::{Contribution, Destination, Syncer};
pub use violation::ProtocolViolation;

#[cfg(test)]
mod tests;
