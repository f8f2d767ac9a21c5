//! The coordinator: knows cluster and model, keeps the information book, answers questions.
//!
//! A state machine: members join, the book opens when all are there, members leave. It does no
//! I/O; whoever drives it passes on what it says. Invariant: nobody has a seat who trains another
//! model, another cluster, on another kind of data, or from other weights.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::plan::{Plan, PlanError};
use crate::poseidon::cost::{self, ClusterSize, LayerShape, Scheme};

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// Computes gradients.
    Worker,
    /// Holds shards of the weights.
    Server,
}

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// What it does.
    pub role: MemberRole,
    /// Which of its kind, from 0.
    pub index: u16,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            MemberRole::Worker => "worker",
            MemberRole::Server => "server",
        };
        write!(f, "{role} {}", self.index)
    }
}

/// What a member says first, to the coordinator and to every other member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberHello {
    /// Who it is.
    pub member: Member,
    /// Which job.
    pub session: u64,
    /// Fingerprint of the model's tensors.
    pub fingerprint: u64,
    /// Hyper-parameters of its solver, as text.
    pub recipe: String,
    /// Hash of the weights it begins with.
    pub weights: u64,
    /// Images of one iteration (workers).
    pub images: u32,
    /// Kind of the pictures it learns from, as `digits 1x28x28/10`; empty: it looks at none.
    #[serde(default)]
    pub data: String,
    /// Where others reach it.
    pub address: String,
    /// Clocks of the checkpoints it has and wants to go on from.
    pub checkpoints: Vec<u64>,
}

/// The information book.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Which job.
    pub session: u64,
    /// What is trained and how.
    pub plan: Plan,
    /// Steps that have been made: 0, or the checkpoint that all members have.
    pub start: u64,
    /// Where each worker is reached.
    pub workers: Vec<String>,
    /// Where each server is reached.
    pub servers: Vec<String>,
}

/// Why somebody was not let in, or not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such seat.
    #[error("there is no {0}: the cluster has {1} workers and {2} servers, counted from 0")]
    NoSuchMember(Member, u16, u16),
    /// Taken.
    #[error("{0} is here already, from {1}: give each an index of its own")]
    AlreadyJoined(Member, String),
    /// Another job.
    #[error(
        "{0} is of session {1:016x}, this cluster is {2:016x}: name the same session everywhere"
    )]
    Session(Member, u64, u64),
    /// Another model.
    #[error(
        "{0} trains another model: its tensors have fingerprint {1:016x}, the coordinator's {2:016x}. \
         Give all the same solver file and data"
    )]
    Model(Member, u64, u64),
    /// Other hyper-parameters.
    #[error("{0} has another solver file: it says {1}, the coordinator's says {2}")]
    Recipe(Member, String, String),
    /// Another batch.
    #[error(
        "{0} computes {1} images per iteration, the coordinator expects {2}: give all the same batch_size and \
         threads per worker"
    )]
    Images(Member, u32, u32),
    /// Other data.
    #[error("{0} learns from {1}, {2} from {3}: give all the same data")]
    Data(Member, String, String, String),
    /// Other weights.
    #[error(
        "{0} begins with other weights than {1}: give all the same seed or file of weights, and no buffer that \
         has been trained"
    )]
    Weights(Member, Member),
    /// A question without an answer.
    #[error("the information book knows no `{0}`: ask for one of {KEYS}")]
    Unknown(String),
}

/// What can be asked for.
const KEYS: &str = "workers, servers, batch, recipe, layers, pairs, scheme:LAYER, cost:LAYER, book";

/// The coordinator of one cluster.
#[derive(Debug)]
pub struct Coordinator {
    session: u64,
    fingerprint: u64,
    plan: Plan,
    /// Kind of the pictures that workers must learn from; empty: the same as each other.
    data: String,
    resume: bool,
    members: Vec<(Member, Option<MemberHello>)>,
    left: Vec<Member>,
}

impl Coordinator {
    /// A coordinator whose members are all still missing. With `resume` they go on from the newest
    /// checkpoint that all of them have.
    ///
    /// # Errors
    /// A plan that contradicts itself.
    pub fn new(
        session: u64,
        fingerprint: u64,
        plan: Plan,
        resume: bool,
    ) -> Result<Self, PlanError> {
        plan.check()?;
        let role = |role, count| (0..count).map(move |index| (Member { role, index }, None));
        let members =
            role(MemberRole::Worker, plan.workers).chain(role(MemberRole::Server, plan.servers));
        Ok(Self {
            session,
            fingerprint,
            data: String::new(),
            resume,
            members: members.collect(),
            left: Vec::new(),
            plan,
        })
    }

    /// The same for workers that learn from this kind of pictures; empty: from any, but all from one kind.
    #[must_use]
    pub fn with_data(self, data: String) -> Self {
        Self { data, ..self }
    }

    /// Gives `hello` its seat.
    ///
    /// # Errors
    /// What does not fit this cluster; see [`Refusal`].
    pub fn join(&mut self, hello: MemberHello) -> Result<(), Refusal> {
        let (member, plan) = (hello.member, &self.plan);
        let Some(at) = self.members.iter().position(|(m, _)| *m == member) else {
            return Err(Refusal::NoSuchMember(member, plan.workers, plan.servers));
        };
        if let Some(other) = &self.members[at].1 {
            return Err(Refusal::AlreadyJoined(member, other.address.clone()));
        }
        if hello.session != self.session {
            return Err(Refusal::Session(member, hello.session, self.session));
        }
        if hello.fingerprint != self.fingerprint {
            let own = self.fingerprint;
            return Err(Refusal::Model(member, hello.fingerprint, own));
        }
        if let Some((who, data)) = self.other_data(&hello) {
            return Err(Refusal::Data(member, hello.data, who, data));
        }
        if hello.recipe != plan.recipe {
            let own = plan.recipe.clone();
            return Err(Refusal::Recipe(member, hello.recipe, own));
        }
        if member.role == MemberRole::Worker && hello.images != plan.images {
            return Err(Refusal::Images(member, hello.images, plan.images));
        }
        let mut others = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        if let Some(other) = others.find(|other| !self.resume && other.weights != hello.weights) {
            return Err(Refusal::Weights(member, other.member));
        }
        self.members[at].1 = Some(hello);
        Ok(())
    }

    /// Who learns from another kind of pictures than `hello`, and from which.
    fn other_data(&self, hello: &MemberHello) -> Option<(String, String)> {
        let others = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        let others = others.map(|other| (other.member.to_string(), &other.data));
        std::iter::once(("the coordinator".to_owned(), &self.data))
            .chain(others)
            .find(|(_, data)| !data.is_empty() && !hello.data.is_empty() && **data != hello.data)
            .map(|(who, data)| (who, data.clone()))
    }

    /// Frees the seat of a member that went before the book was opened.
    pub fn forget(&mut self, member: Member) {
        for (_, hello) in self.members.iter_mut().filter(|(m, _)| *m == member) {
            *hello = None;
        }
    }

    /// Who is not there yet.
    pub fn missing(&self) -> Vec<Member> {
        let empty = self.members.iter().filter(|(_, hello)| hello.is_none());
        empty.map(|(member, _)| *member).collect()
    }

    /// The information book, once everybody is there.
    pub fn cluster_info(&self) -> Option<ClusterInfo> {
        let hellos: Option<Vec<&MemberHello>> =
            self.members.iter().map(|(_, h)| h.as_ref()).collect();
        let hellos = hellos?;
        let of = |role| {
            let members = hellos.iter().filter(move |h| h.member.role == role);
            members.map(|h| h.address.clone()).collect()
        };
        let (first, others) = hellos.split_first()?;
        let common = first.checkpoints.iter().copied().filter(|clock| {
            let has = |hello: &&MemberHello| hello.checkpoints.contains(clock);
            self.resume && others.iter().all(has)
        });
        Some(ClusterInfo {
            session: self.session,
            plan: self.plan.clone(),
            start: common.max().unwrap_or(0),
            workers: of(MemberRole::Worker),
            servers: of(MemberRole::Server),
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How the gradient of the layer of that name travels.
    pub fn best_scheme(&self, layer: &str) -> Option<Scheme> {
        let layers = &self.plan.layers;
        layers.iter().find(|l| l.name == layer).map(|l| l.scheme)
    }

    /// Answers a question from the information book, as JSON.
    ///
    /// # Errors
    /// Nothing is known by that name.
    pub fn query(&self, key: &str) -> Result<serde_json::Value, Refusal> {
        let unknown = || Refusal::Unknown(key.into());
        let plan = &self.plan;
        Ok(match key {
            "workers" => plan.workers.into(),
            "servers" => plan.servers.into(),
            "batch" => plan.images.into(),
            "recipe" => plan.recipe.as_str().into(),
            "pairs" => plan.pairs().len().into(),
            "layers" => plan.layers.iter().map(|l| l.name.as_str()).collect(),
            "book" => serde_json::to_value(self.cluster_info()).map_err(|_| unknown())?,
            _ => match key.split_once(':') {
                Some(("scheme", layer)) => {
                    let scheme = self.best_scheme(layer).ok_or_else(unknown)?;
                    serde_json::to_value(scheme).map_err(|_| unknown())?
                }
                Some(("cost", layer)) => self.costs(layer).ok_or_else(unknown)?,
                _ => return Err(unknown()),
            },
        })
    }

    /// Floats that each scheme would send for a layer in one iteration, by role (see [`cost`]); null
    /// where a layer has no factors.
    fn costs(&self, layer: &str) -> Option<serde_json::Value> {
        let layer = self.plan.layers.iter().find(|l| l.name == layer)?.shape;
        let cluster = self.plan.cluster().ok()?;
        let of_role = |floats: fn(Scheme, LayerShape, ClusterSize) -> f64| -> serde_json::Value {
            let can = |scheme: &Scheme| layer.fully_connected || !scheme.sends_factors();
            let cost = |scheme: Scheme| can(&scheme).then(|| floats(scheme, layer, cluster));
            let costs = Scheme::ALL.map(|scheme| (scheme.to_string(), cost(scheme).into()));
            serde_json::Map::from_iter(costs).into()
        };
        Some(serde_json::json!({
            "worker": of_role(cost::worker_floats),
            "server": of_role(cost::server_floats),
            "node": of_role(cost::node_floats),
            "cluster": of_role(cost::cluster_floats),
        }))
    }

    /// `member` has said goodbye.
    pub fn leave(&mut self, member: Member) {
        if !self.left.contains(&member) {
            self.left.push(member);
        }
    }

    /// True if it has said goodbye: its connection may end.
    pub fn has_left(&self, member: Member) -> bool {
        self.left.contains(&member)
    }

    /// True if everybody has.
    pub fn finished(&self) -> bool {
        self.left.len() == self.members.len()
    }
}

#[cfg(test)]
mod tests;
