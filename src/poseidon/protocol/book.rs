//! What a coordinator tells about the model to one that wants to join.
//!
//! Numbers and names only. A client needs nothing else to say its `Hello`, to cut its gradients
//! into pairs and its factors into rows.

use serde::{Deserialize, Serialize};

use super::plan::{Pair, Plan};

/// The job and its model, as the coordinator knows them before any member has joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Book {
    /// Number of the job.
    pub session: u64,
    /// Fingerprint of the model's tensors.
    pub fingerprint: u64,
    /// What is trained and how: layers with their tensors, schemes and rows, and the step.
    pub plan: Plan,
    /// The KV pairs that follow from the plan.
    pub pairs: Vec<Pair>,
}

impl Book {
    /// The book of `plan`.
    pub fn new(session: u64, fingerprint: u64, plan: &Plan) -> Self {
        Self {
            session,
            fingerprint,
            pairs: plan.pairs(),
            plan: plan.clone(),
        }
    }
}
