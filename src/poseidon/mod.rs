//! Poseidon: the reliable path, layer by layer (Zhang et al. 2015 and 2017).
//!
//! For when every gradient must arrive. A [`Coordinator`] keeps the information book; servers hold
//! the weights in KV pairs ([`KvStore`]); each worker has a [`Syncer`] per layer that sends the
//! layer's gradient, or its sufficient factors, the moment its backward pass is done. [`cost`]
//! says which [`Scheme`] costs least.
//!
//! May touch weights through a view, and bytes. No sockets, no clocks, no threads, no random
//! numbers, and no solver: its arithmetic is brought along ([`Arithmetic`]). `node::poseidon`
//! drives these state machines over TCP; `docs/reference/reliable-protocol.md` has the protocol.

mod arithmetic;
mod bandwidth;
mod coordinator;
pub mod cost;
mod message;
mod onebit;
mod plan;
mod replay;
mod rounds;
mod store;
mod syncer;

pub use arithmetic::Arithmetic;
pub use bandwidth::{Bandwidth, Next, Weight};
pub use coordinator::{Book, Coordinator, Hello, Member, Refusal, Role};
pub use cost::{Cluster, LayerShape, Policy, Scheme};
pub use message::{
    Body, HEADER_LEN, Header, Kind, MAX_TEXT, Message, ParseError, Payload, Sizes, VERSION,
    bits_len,
};
pub use plan::{
    PAIR_BYTES, Pair, Partition, Plan, PlanError, PlanLayer, PlanTensor, Stragglers, Wish,
};
pub use replay::{RecordedLayer, Recording, RecordingError};
pub use rounds::RoundError;
pub use store::{Breach, Checkpoint, KvStore, Saved};
pub use syncer::{Completion, Contribution, Syncer, To};

#[cfg(test)]
mod tests;
