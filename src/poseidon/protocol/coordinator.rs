//! The coordinator: knows cluster and model, admits members, answers questions about the plan.
//!
//! A state machine: members join; when all have joined, there is a [`ClusterInfo`] for them (the
//! papers call it the information book); members leave. It does no I/O: the runtime sends what it
//! returns. Invariant: all members that have joined train the same model in the same job, on the
//! same kind of data, from the same weights.

mod resume;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::book::Book;
use super::message::MAX_TEXT;
use super::plan::{Plan, PlanError};
use crate::poseidon::cost::{self, ClusterSize, LayerShape, Scheme};

/// The part of a member in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// It computes gradients.
    Worker,
    /// It holds shards of the weights.
    Server,
}

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Its part in the cluster.
    pub role: MemberRole,
    /// Its number among the members of its role, from 0.
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

/// The first message of a member, to the coordinator and to every other member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberHello {
    /// The member that sends it.
    pub member: Member,
    /// Number of the job.
    pub session: u64,
    /// Fingerprint of the model's tensors.
    pub fingerprint: u64,
    /// Hyper-parameters of its solver, as text.
    pub recipe: String,
    /// Hash of the weights it begins with; 0: it takes those that the servers send.
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
    /// For each of them a hash of its weights (workers); empty: it does not say.
    #[serde(default)]
    pub replicas: Vec<u64>,
}

/// Description of a cluster whose members have all joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Number of the job.
    pub session: u64,
    /// What is trained and how.
    pub plan: Plan,
    /// Steps that have been made: 0, or the checkpoint that all members have.
    pub start: u64,
    /// Where each worker is reached.
    pub workers: Vec<String>,
    /// Where each server is reached.
    pub servers: Vec<String>,
    /// The run has begun without this member, which takes the place of a dead one: it begins with
    /// the weights that the servers send.
    #[serde(default)]
    pub late: bool,
}

/// Why a member was not admitted, or a question not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The cluster has no member of this role and index.
    #[error("there is no {0}: the cluster has {1} workers and {2} servers, counted from 0")]
    NoSuchMember(Member, u16, u16),
    /// Another process has joined as this member.
    #[error("{0} is here already, from {1}: give each an index of its own")]
    AlreadyJoined(Member, String),
    /// It belongs to another job.
    #[error(
        "{0} is of session {1:016x}, this cluster is {2:016x}: name the same session everywhere"
    )]
    Session(Member, u64, u64),
    /// Its model has other tensors.
    #[error(
        "{0} trains another model: its tensors have fingerprint {1:016x}, the coordinator's {2:016x}. \
         Give all the same solver file and data"
    )]
    Model(Member, u64, u64),
    /// Its hyper-parameters differ.
    #[error("{0} has another solver file: it says {1}, the coordinator's says {2}")]
    Recipe(Member, String, String),
    /// Its batch differs.
    #[error(
        "{0} computes {1} images per iteration, the coordinator expects {2}: give all the same batch_size and \
         threads per worker"
    )]
    Images(Member, u32, u32),
    /// Its pictures are of another kind.
    #[error("{0} learns from {1}, {2} from {3}: give all the same data")]
    Data(Member, String, String, String),
    /// It begins with other weights.
    #[error(
        "{0} begins with other weights than {1}: give all the same seed or file of weights, and no buffer that \
         has been trained"
    )]
    Weights(Member, Member),
    /// A run shall be gone on with, and there is nothing to go on from.
    #[error(
        "nothing to go on from: the members have no checkpoint in common ({0}); give all the folders of the run \
         to go on with, or begin anew"
    )]
    NothingInCommon(String),
    /// The answer does not fit a message.
    #[error(
        "the model has {0} bytes as text, more than the {MAX_TEXT} of a message: use larger pairs"
    )]
    TooLarge(usize),
    /// The question is not known.
    #[error("the coordinator has no answer to `{0}`: ask for one of {KEYS}")]
    Unknown(String),
}

/// The questions that are answered. They are part of the protocol: `book` is the [`ClusterInfo`],
/// `model` the [`Book`].
const KEYS: &str =
    "workers, servers, batch, recipe, layers, pairs, scheme:LAYER, cost:LAYER, model, book";

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
    /// Workers that died while the others went on.
    dead: BTreeSet<Member>,
    /// Servers that hold no pairs, and so write no checkpoints.
    idle: BTreeSet<Member>,
    /// Checkpoints that each member has said to have.
    saved: BTreeMap<Member, BTreeSet<u64>>,
}

impl Coordinator {
    /// A coordinator without members yet. With `resume` they continue from the newest checkpoint
    /// that all of them have.
    ///
    /// # Errors
    /// The plan contradicts itself.
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
        let homes: BTreeSet<_> = plan.pairs().iter().filter_map(|pair| pair.home).collect();
        let servers = role(MemberRole::Server, plan.servers).map(|(member, _)| member);
        let idle = servers.filter(|server| !homes.contains(server)).collect();
        Ok(Self {
            session,
            fingerprint,
            data: String::new(),
            resume,
            members: members.collect(),
            left: Vec::new(),
            dead: BTreeSet::new(),
            idle,
            saved: BTreeMap::new(),
            plan,
        })
    }

    /// Sets the kind of pictures that workers must learn from; empty: any kind, but one for all.
    #[must_use]
    pub fn with_data(self, data: String) -> Self {
        Self { data, ..self }
    }

    /// Admits the member that sent `hello`.
    ///
    /// # Errors
    /// It does not fit this cluster; see [`Refusal`]. Nothing has changed then.
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
        // With `resume` the first weights do not matter: those of the checkpoint replace them, and
        // a worker's buffer may hold any state of the run before.
        let mut others = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        let differ = |[a, b]: [u64; 2]| a != b && a != 0 && b != 0;
        let differ = |other: &&MemberHello| differ([other.weights, hello.weights]);
        if let Some(other) = others.find(|other| !self.resume && differ(other)) {
            return Err(Refusal::Weights(member, other.member));
        }
        if self.dead.remove(&member) {
            let checkpoints = hello.checkpoints.iter().copied().collect();
            self.saved.insert(member, checkpoints);
        }
        self.members[at].1 = Some(hello);
        Ok(())
    }

    /// A member that learns from another kind of pictures than `hello`, and that kind.
    fn other_data(&self, hello: &MemberHello) -> Option<(String, String)> {
        let others = self.members.iter().filter_map(|(_, hello)| hello.as_ref());
        let others = others.map(|other| (other.member.to_string(), &other.data));
        std::iter::once(("the coordinator".to_owned(), &self.data))
            .chain(others)
            .find(|(_, data)| !data.is_empty() && !hello.data.is_empty() && **data != hello.data)
            .map(|(who, data)| (who, data.clone()))
    }

    /// Forgets a member whose connection ended before all had joined: it may join again.
    pub fn forget(&mut self, member: Member) {
        for (_, hello) in self.members.iter_mut().filter(|(m, _)| *m == member) {
            *hello = None;
        }
    }

    /// Forgets a worker that died while the run goes on, if it can go on: enough others live, and
    /// late updates are dropped. It may join again.
    pub fn lose(&mut self, member: Member) -> bool {
        let workers = self.members.iter().map(|(member, _)| *member);
        let left = workers.filter(|other| {
            let is_dead = *other == member || self.dead.contains(other);
            other.role == MemberRole::Worker && !is_dead
        });
        let goes_on = member.role == MemberRole::Worker && self.plan.goes_on_with(left.count());
        if goes_on {
            self.forget(member);
            self.dead.insert(member);
        }
        goes_on
    }

    /// The members that have not joined yet.
    pub fn missing(&self) -> Vec<Member> {
        let empty = self.members.iter().filter(|(_, hello)| hello.is_none());
        empty.map(|(member, _)| *member).collect()
    }

    /// The description of the cluster, once all members have joined.
    pub fn cluster_info(&self) -> Option<ClusterInfo> {
        let hellos: Option<Vec<&MemberHello>> =
            self.members.iter().map(|(_, h)| h.as_ref()).collect();
        let hellos = hellos?;
        let of = |role| {
            let members = hellos.iter().filter(move |h| h.member.role == role);
            members.map(|h| h.address.clone()).collect()
        };
        Some(ClusterInfo {
            session: self.session,
            plan: self.plan.clone(),
            start: self.start(&hellos).unwrap_or(0),
            workers: of(MemberRole::Worker),
            servers: of(MemberRole::Server),
            late: false,
        })
    }

    /// The plan that the members follow.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The scheme by which the gradient of the layer `layer` travels.
    pub fn best_scheme(&self, layer: &str) -> Option<Scheme> {
        let layers = &self.plan.layers;
        layers.iter().find(|l| l.name == layer).map(|l| l.scheme)
    }

    /// Answers a question about the cluster, as JSON.
    ///
    /// # Errors
    /// The question is not known.
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
            "model" => self.model()?,
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

    /// The [`Book`], if it fits a message.
    fn model(&self) -> Result<serde_json::Value, Refusal> {
        let book = Book::new(self.session, self.fingerprint, &self.plan);
        let book = serde_json::to_value(book).map_err(|_| Refusal::Unknown("model".into()))?;
        let bytes = book.to_string().len();
        match bytes <= MAX_TEXT {
            true => Ok(book),
            false => Err(Refusal::TooLarge(bytes)),
        }
    }

    /// Floats that each scheme would send for a layer in one iteration, by role (see [`cost`]);
    /// null where a layer has no factors.
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

    /// Notes that `member` has sent `Bye`.
    pub fn leave(&mut self, member: Member) {
        if !self.left.contains(&member) {
            self.left.push(member);
        }
    }

    /// True if `member` has sent `Bye`: its connection may end.
    pub fn has_left(&self, member: Member) -> bool {
        self.left.contains(&member)
    }

    /// True if all members have sent `Bye`, but for those that died.
    pub fn finished(&self) -> bool {
        self.left.len() + self.dead.len() == self.members.len()
    }
}

#[cfg(test)]
mod tests;
