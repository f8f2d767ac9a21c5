//! What a cluster trains and how: the part of its description that is fixed before members join.
//!
//! Numbers and names only. Invariants: a [`Plan`] is checked, and its KV pairs follow from it
//! alone, so every member that has the plan knows which server holds which pair.

mod error;
mod layer_spec;
mod loads;
mod pairs;

use serde::{Deserialize, Serialize};

use super::ahead::Reads;
use super::coordinator::{Member, MemberRole};
use super::message::{MAX_TEXT, Sizes};
use super::step::{StepRule, StepSpec};
use crate::poseidon::cost::{ClusterError, ClusterSize, LayerShape, Policy, Scheme};

pub use error::PlanError;
pub use layer_spec::LayerSpec;
pub use pairs::Pair;

/// Default size of a KV pair, in bytes (2017 paper, section 4.1).
pub const PAIR_BYTES: u64 = 2 << 20;
/// Largest pair: its length must fit the header of a message.
const MAX_PAIR_BYTES: u64 = 1 << 31;

/// How tensors are dealt to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partition {
    /// In pairs of at most so many bytes, spread evenly.
    Pairs,
    /// Whole (the stock TensorFlow baseline).
    Tensor,
}

/// What happens when workers are late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stragglers {
    /// All workers wait for the slowest.
    Wait,
    /// A step is made as soon as this share of the workers has sent; what comes later is dropped
    /// and counted.
    Drop(f64),
}

/// A tensor of a layer, in the layout of the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTensor {
    /// Name, as `ip1.weight`.
    pub name: String,
    /// First weight in the buffer.
    pub offset: usize,
    /// Number of weights.
    pub len: usize,
    /// Weights of each output: a row of a matrix, the kernels of a channel; 1 for a bias.
    pub row: usize,
}

impl PlanTensor {
    /// The tensor of `shape`, outputs first, at weight `offset` of the buffer.
    pub fn new(name: &str, offset: usize, shape: &[usize]) -> Self {
        Self {
            name: name.to_owned(),
            offset,
            len: shape.iter().product(),
            row: shape.iter().skip(1).product(),
        }
    }
}

/// A layer that learns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLayer {
    /// Name of the layer, as `ip1`.
    pub name: String,
    /// Its weight matrix.
    pub shape: LayerShape,
    /// How its gradient travels.
    pub scheme: Scheme,
    /// Rows of factors that a worker sends in one iteration, at most: its images, or more where
    /// each image passes through the layer several times (the places of a text).
    pub rows: u32,
    /// Weight, then bias if it has one.
    pub tensors: Vec<PlanTensor>,
}

/// Settings of a cluster, from which a [`Plan`] is made.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// Number of workers.
    pub workers: u16,
    /// Number of servers; 0 where workers hold all.
    pub servers: u16,
    /// Images of a worker in one iteration.
    pub images: u32,
    /// The rule that chooses a scheme for each layer.
    pub policy: Policy,
    /// Bytes of a KV pair, at most.
    pub pair_bytes: u64,
    /// How tensors are dealt.
    pub partition: Partition,
    /// See [`Plan::staleness`].
    pub staleness: u32,
    /// What a worker reads while steps are missing.
    pub reads: Reads,
    /// What happens when workers are late.
    pub stragglers: Stragglers,
    /// Iterations of each worker.
    pub clocks: u64,
    /// Iterations between checkpoints; 0: none.
    pub checkpoint_every: u64,
    /// Hyper-parameters of the solver, as text: equal text, equal arithmetic.
    pub recipe: String,
}

impl ClusterSpec {
    /// So many workers and servers for so many iterations: `hybcomm`, all in step, no checkpoints.
    pub fn new(workers: u16, servers: u16, clocks: u64) -> Self {
        Self {
            workers,
            servers,
            images: 0,
            policy: Policy::HybComm,
            pair_bytes: PAIR_BYTES,
            partition: Partition::Pairs,
            staleness: 0,
            reads: Reads::Own,
            stragglers: Stragglers::Wait,
            clocks,
            checkpoint_every: 0,
            recipe: String::new(),
        }
    }
}

/// A checked plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Number of workers.
    pub workers: u16,
    /// Number of servers.
    pub servers: u16,
    /// Images of a worker in one iteration.
    pub images: u32,
    /// Layers that learn, first layer first.
    pub layers: Vec<PlanLayer>,
    /// Bytes of a KV pair, at most.
    pub pair_bytes: u64,
    /// How tensors are dealt.
    pub partition: Partition,
    /// A worker at iteration t sees every update up to t - staleness - 1 of every worker, or waits.
    pub staleness: u32,
    /// What a worker reads while steps are missing.
    #[serde(default)]
    pub reads: Reads,
    /// What happens when workers are late.
    pub stragglers: Stragglers,
    /// Iterations of each worker.
    pub clocks: u64,
    /// Iterations between checkpoints; 0: none.
    pub checkpoint_every: u64,
    /// Hyper-parameters of the solver, as text.
    pub recipe: String,
    /// How steps are made.
    #[serde(default)]
    pub step: StepSpec,
}

impl Plan {
    /// Chooses a scheme for each of `layers` that has none and checks the whole. The steps are
    /// those of [`StepSpec::default`] until [`Plan::with_step`] sets others.
    ///
    /// # Errors
    /// What contradicts itself or cannot be; see [`PlanError`].
    pub fn new<L: Into<LayerSpec>>(spec: &ClusterSpec, layers: Vec<L>) -> Result<Self, PlanError> {
        let cluster = ClusterSize::new(spec.workers.into(), spec.servers.into(), spec.images)?;
        let layers = layers.into_iter().map(|layer| {
            let layer: LayerSpec = layer.into();
            let rows = layer.rows.unwrap_or(spec.images);
            let cluster = cluster.with_batch(rows);
            let policy = layer.scheme.map_or(spec.policy, Policy::Force);
            PlanLayer {
                scheme: match spec.stragglers {
                    Stragglers::Wait => policy.choose(layer.shape, cluster),
                    Stragglers::Drop(_) => policy.choose_on_servers(layer.shape, cluster),
                },
                name: layer.name,
                shape: layer.shape,
                tensors: layer.tensors,
                rows,
            }
        });
        let plan = Self {
            workers: spec.workers,
            servers: spec.servers,
            images: spec.images,
            layers: layers.collect(),
            pair_bytes: spec.pair_bytes,
            partition: spec.partition,
            staleness: spec.staleness,
            reads: spec.reads,
            stragglers: spec.stragglers,
            clocks: spec.clocks,
            checkpoint_every: spec.checkpoint_every,
            recipe: spec.recipe.clone(),
            step: StepSpec::default(),
        };
        plan.check()?;
        Ok(plan)
    }

    /// The same plan with other steps.
    ///
    /// # Errors
    /// They cannot be, or not in this cluster; see [`PlanError`].
    pub fn with_step(self, step: StepSpec) -> Result<Self, PlanError> {
        let plan = Self { step, ..self };
        plan.check()?;
        Ok(plan)
    }

    /// Checks a plan, one that came over the network too.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        self.cluster()?;
        if self.pair_bytes < 4 || self.pair_bytes > MAX_PAIR_BYTES {
            return Err(PlanError::PairBytes(self.pair_bytes));
        }
        let tensors = || self.layers.iter().flat_map(|layer| &layer.tensors);
        let whole = self.partition == Partition::Tensor;
        if let Some(large) = tensors().find(|t| whole && t.len as u64 * 4 > MAX_PAIR_BYTES) {
            let bytes = large.len as u64 * 4;
            return Err(PlanError::Tensor(large.name.clone(), bytes));
        }
        if let Stragglers::Drop(quorum) = self.stragglers {
            self.check_drop(quorum)?;
        }
        self.check_step()?;
        let at_server = |home: Member| home.role == MemberRole::Server;
        let pairs = self.pairs();
        let held = pairs.iter().filter(|p| p.home.is_some_and(at_server));
        if let (0, Some(pair)) = (self.servers, held.clone().next()) {
            let layer = &self.layers[pair.layer];
            return Err(PlanError::NoServer(layer.name.clone(), pair.scheme));
        }
        let held = held.count();
        if usize::from(self.servers) > held.max(1) {
            return Err(PlanError::Servers {
                servers: self.servers,
                pairs: held,
            });
        }
        let bytes = serde_json::to_string(self).map_or(usize::MAX, |text| text.len());
        if bytes > MAX_TEXT / 2 {
            return Err(PlanError::TooLarge(bytes));
        }
        Ok(())
    }

    /// The machines, as costs count them.
    pub(super) fn cluster(&self) -> Result<ClusterSize, ClusterError> {
        ClusterSize::new(self.workers.into(), self.servers.into(), self.images)
    }

    fn check_drop(&self, quorum: f64) -> Result<(), PlanError> {
        if !(quorum > 0.0 && quorum <= 1.0) {
            return Err(PlanError::Quorum(quorum));
        }
        if self.staleness > 0 {
            return Err(PlanError::StalenessAndDrop(self.staleness));
        }
        if self.servers == 0 {
            return Err(PlanError::DropAlone);
        }
        match self.layers.iter().find(|l| l.scheme.is_between_workers()) {
            Some(layer) => Err(PlanError::PeersAndDrop(layer.name.clone(), layer.scheme)),
            None => Ok(()),
        }
    }

    fn check_step(&self) -> Result<(), PlanError> {
        let tensors: Vec<usize> = self.layers.iter().map(|l| l.tensors.len()).collect();
        self.step.check(&tensors)?;
        match (&self.step.rule, self.stragglers) {
            (StepRule::Mean {}, Stragglers::Drop(_)) => {
                Err(PlanError::Mean("late workers dropped"))
            }
            (StepRule::Mean {}, _) if self.staleness > 0 => Err(PlanError::Mean("staleness")),
            _ => Ok(()),
        }
    }

    /// Workers whose gradients make a step.
    pub fn quorum(&self) -> usize {
        let workers = usize::from(self.workers);
        match self.stragglers {
            Stragglers::Wait => workers,
            Stragglers::Drop(share) => ((share * workers as f64).ceil() as usize).clamp(1, workers),
        }
    }

    /// True if a run goes on without workers that died, as long as so many are left.
    pub fn goes_on_with(&self, left: usize) -> bool {
        self.stragglers != Stragglers::Wait && left >= self.quorum()
    }

    /// What messages about this plan may carry.
    pub fn sizes(&self) -> Sizes {
        let factored = |layer: &PlanLayer| {
            let sizes = [layer.shape.outputs as usize, layer.shape.inputs as usize];
            layer.scheme.sends_factors().then_some(sizes)
        };
        Sizes {
            pairs: self.pairs().iter().map(Pair::size).collect(),
            layers: self.layers.iter().map(factored).collect(),
            rows: self.layers.iter().map(|l| l.rows as usize).collect(),
        }
    }

    /// Weights of a buffer that holds every tensor.
    pub fn extent(&self) -> usize {
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors);
        tensors.map(|t| t.offset + t.len).max().unwrap_or(0)
    }

    /// True if workers talk to each other.
    pub fn has_peers(&self) -> bool {
        let between = |l: &PlanLayer| l.scheme.is_between_workers();
        self.workers > 1 && self.layers.iter().any(between)
    }

    /// True if a checkpoint is made when `clock` steps are done.
    pub fn checkpoint_at(&self, clock: u64) -> bool {
        let due = |every| clock.is_multiple_of(every) || clock == self.clocks;
        clock > 0 && self.checkpoint_every > 0 && due(self.checkpoint_every)
    }
}

#[cfg(test)]
mod tests;
