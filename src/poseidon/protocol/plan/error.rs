//! Why a plan is refused. Texts and numbers only.

use super::super::message::MAX_TEXT;
use super::super::step::StepError;
use super::MAX_PAIR_BYTES;
use crate::poseidon::cost::{ClusterError, Scheme};

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// It has no workers, no servers or no images.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Some servers would hold nothing.
    #[error(
        "{servers} servers, but only {pairs} KV pairs to hold (layers under sfb and p2p have none): use fewer \
         servers, or smaller pairs"
    )]
    Servers {
        /// Number of servers.
        servers: u16,
        /// Number of pairs that servers hold.
        pairs: usize,
    },
    /// Its scheme needs a server.
    #[error(
        "layer {0} takes scheme {1}, which needs a server, and there is none: give 1 or more, or scheme p2p, \
         hybcomm or cheapest"
    )]
    NoServer(String, Scheme),
    /// Pairs would hold no weight, or more than a message can carry.
    #[error("KV pairs of {0} bytes: give 4 to {MAX_PAIR_BYTES}")]
    PairBytes(u64),
    /// No message can carry this tensor whole.
    #[error("tensor {0} has {1} bytes, more than a message carries: partition tensors into pairs")]
    Tensor(String, u64),
    /// Staleness promises what dropped updates break.
    #[error(
        "staleness {0} with late workers dropped: staleness promises that every update of every worker \
         is seen, dropping leaves some out. Choose one of them"
    )]
    StalenessAndDrop(u32),
    /// Without a server nothing decides for all whose updates count, and a dead worker takes its
    /// part along.
    #[error(
        "late workers dropped with scheme {1} (layer {0}): updates go from worker to worker, and only a \
         server can leave a late worker out for all. Use scheme hybcomm, sacp, cheapest, ps, adam or onebit"
    )]
    PeersAndDrop(String, Scheme),
    /// Nothing could leave a late worker out.
    #[error(
        "late workers dropped without servers: only a server can leave a late worker out for all. Give 1 server \
         or more"
    )]
    DropAlone,
    /// The rule of the steps cannot be.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A mean gradient that a worker does not see is lost for its optimiser.
    #[error(
        "step rule mean with {0}: the workers' optimisers must all see every mean gradient. Choose \
         another rule, or staleness 0 and no late workers dropped"
    )]
    Mean(&'static str),
    /// The quorum is not a share.
    #[error("a quorum of {0}: give a share above 0 and at most 1")]
    Quorum(f64),
    /// There are too many layers or tensors for one message.
    #[error("the description of this model has {0} bytes, more than half of {MAX_TEXT}")]
    TooLarge(usize),
}
