//! What a job is: a model, data and how long, on one of the two paths.
//!
//! Settings only, checked before. `dogwild train` makes a plan of its arguments, and `run` runs it.

use std::ops::Range;
use std::path::PathBuf;

use super::Experiment;
use super::boards::Boards;
use super::meeting::Meeting;
use super::paces::Paces;
use super::pauses::Pause;
use super::resume::Resume;
use super::snapshot_every::SnapshotEvery;
use super::solvers::Solvers;
use crate::device::Which;
use crate::poseidon::Overlap;
use crate::settings::{
    ClusterSettings, Devices, FaultSettings, FlowSettings, SlowSettings, TransportSettings,
};
use crate::solver::SolverSpec;
use crate::solver::data::{Shard, Source};
use crate::weights::{Role, SlotInfo};

/// What to train, and how.
pub struct JobPlan {
    /// What is run, where and when: for the summary.
    pub experiment: Experiment,
    /// The model, checked.
    pub spec: SolverSpec,
    /// The model as named on the command line.
    pub model: String,
    /// Training and test pictures.
    pub data: Source,
    /// Iterations: of the cluster on the stream (0: until stopped or the target accuracy is
    /// reached), of each worker on the reliable path.
    pub iterations: u64,
    /// Stop at this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Iterations between tests, if other than the solver file says.
    pub test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all; none: as many as the component takes by itself.
    pub test_images: Option<usize>,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Folder for event files for TensorBoard.
    pub tensorboard: Option<PathBuf>,
    /// Where counters of its buffers are served, as HOST:PORT.
    pub metrics: Option<String>,
    /// Folder that components write to: the working folder of the job's
    /// [`OutFolder`](super::OutFolder).
    pub out: PathBuf,
    /// What keeps the replicas in step.
    pub path: PathPlan,
}

impl JobPlan {
    /// The event files of `nodes` nodes from `first` on, if they are wanted.
    ///
    /// # Errors
    /// A file cannot be made.
    pub(super) fn boards(&self, first: u16, nodes: usize) -> anyhow::Result<Boards> {
        Boards::open(self.tensorboard.as_deref(), &self.out, first, nodes)
    }
}

/// What a job is told besides, on each path.
pub enum PathPlan {
    /// Streamers, without ever waiting.
    Stream(Box<StreamPlan>),
    /// Servers and peers, step by step.
    Poseidon(Box<PoseidonPlan>),
}

/// A job on the stream.
pub struct StreamPlan {
    /// Number of nodes.
    pub nodes: u16,
    /// Solvers on each node.
    pub solvers: Solvers,
    /// Devices of each node that learns, each with a solver of its own.
    pub devices: Devices,
    /// Whether the last node only tests; then solvers do not.
    pub tester: bool,
    /// Steps per second of a solver, at most.
    pub pace_steps: Option<Paces>,
    /// Nodes that stand still for a while.
    pub pauses: Vec<Pause>,
    /// Most local steps that another node's range may be old; `None`: any.
    pub max_age: Option<u64>,
    /// Iterations or time between snapshots, if other than the solver file and the minute.
    pub snapshot_every: Option<SnapshotEvery>,
    /// The snapshot to go on from.
    pub resume: Option<Resume>,
    /// The only node of the job that runs here; none: all of them do.
    pub here: Option<Here>,
    /// Hosts in namespaces instead of loopback.
    pub lab: Option<dogwild_lab::Spec>,
    /// How nodes reach each other.
    pub transport: TransportSettings,
    /// How the stream behaves.
    pub stream: FlowSettings,
    /// What happens to frames on purpose.
    pub faults: FaultSettings,
}

/// A node whose others run elsewhere, and have met.
pub struct Here {
    /// Which node.
    pub node: u16,
    /// The job's number; the same on all nodes.
    pub session: u64,
    /// Host at which others are found where multicast does not reach them; none: this one.
    pub join: Option<String>,
    /// Where the nodes have met.
    pub meeting: Meeting,
}

impl Here {
    /// Node numbers of a job of `nodes` nodes that run apart. One node alone has a streamer only
    /// where it was asked for places.
    pub fn places(stream: &FlowSettings, nodes: u16) -> u16 {
        match nodes {
            1 => stream.places.unwrap_or(1),
            _ => stream.places_of(nodes),
        }
    }
}

impl StreamPlan {
    /// Whether its nodes have streamers. One node alone has none, unless others may join it.
    pub(super) fn streams(&self) -> bool {
        self.nodes > 1 || self.here.is_some() && self.places() > 1
    }

    /// Node numbers that there are. Nodes of one machine are all there at the beginning.
    pub(super) fn places(&self) -> u16 {
        match &self.here {
            Some(_) => Here::places(&self.stream, self.nodes),
            None => self.stream.places.unwrap_or(self.nodes),
        }
    }

    /// The node of the beginning that `node` is like, in solvers, pictures and pace: itself. One
    /// that joins is like one of those with the most solvers.
    fn like(&self, node: u16) -> u16 {
        let Some(later) = node.checked_sub(self.nodes) else {
            return node;
        };
        let nodes = 0..self.nodes;
        let most = nodes.clone().map(|node| self.solvers.of(node)).max();
        let learners = nodes.filter(|node| Some(self.solvers.of(*node)) == most);
        learners.cycle().nth(later.into()).unwrap_or(0)
    }

    /// Solvers on processors of `node`.
    pub(super) fn solvers_of(&self, node: u16) -> u32 {
        self.solvers.of(self.like(node))
    }

    /// Steps per second of a solver of `node`, at most.
    pub(super) fn pace_of(&self, node: u16) -> Option<f64> {
        self.pace_steps.as_ref()?.of(self.like(node))
    }

    /// When `node` tests, among those that do.
    pub(super) fn turn_of(&self, node: u16) -> Shard {
        self.solvers.turn(self.like(node), self.nodes)
    }

    /// Solvers on processors and devices of `node`.
    pub(super) fn all_solvers(&self, node: u16) -> u32 {
        self.solvers_of(node) + self.devices_of(node).len() as u32
    }

    /// Whether the job starts this component of `node` itself: others may come from elsewhere.
    pub(super) fn starts(&self, node: u16, slot: &SlotInfo) -> bool {
        match slot.role {
            Role::Solver => slot.index < self.all_solvers(node),
            Role::Stream | Role::Gpu => true,
            Role::Snapshot | Role::Other => false,
        }
    }

    /// Those of the first `nodes` nodes together.
    pub(super) fn all_solvers_of_first(&self, nodes: u16) -> u32 {
        (0..nodes).map(|node| self.all_solvers(node)).sum()
    }

    /// The devices of `node`; one that only tests has none.
    pub(super) fn devices_of(&self, node: u16) -> &[Which] {
        let tests = self.tester && node + 1 == self.nodes;
        if tests { &[] } else { &self.devices.0 }
    }

    /// The share of the pictures of solver `index` of `node`, those on devices counted last.
    pub(super) fn shard(&self, node: u16, index: u32) -> Shard {
        Shard {
            index: self.all_solvers_of_first(self.like(node)) + index,
            of: self.all_solvers_of_first(self.nodes),
        }
    }

    /// The nodes that run here.
    pub(super) fn nodes_here(&self) -> Range<u16> {
        match &self.here {
            Some(here) => here.node..here.node + 1,
            None => 0..self.nodes,
        }
    }
}

/// A job on the reliable path.
pub struct PoseidonPlan {
    /// How the cluster works.
    pub cluster: ClusterSettings,
    /// Threads of each worker.
    pub threads: usize,
    /// Devices of each worker, one for each thread; none: the threads compute.
    pub devices: Option<Devices>,
    /// When workers send layers.
    pub overlap: Overlap,
    /// A worker that is made slow on purpose.
    pub slow: Option<SlowSettings>,
    /// File with the key that secures connections.
    pub key_file: Option<PathBuf>,
    /// The cluster as arguments, for the summary.
    pub cluster_args: Vec<String>,
    /// What only workers are told, as arguments, for the summary.
    pub worker_args: Vec<String>,
    /// Bytes per second that each worker and each server sends at most.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Folder for the checkpoints.
    pub checkpoint_folder: PathBuf,
    /// Go on from the checkpoints.
    pub resume: bool,
    /// The lab of the members: worker K and server K on host K, the coordinator on host 0.
    pub lab: Option<dogwild_lab::Spec>,
    /// The only node of the job that runs here; none: all of them do. Worker K and server K are on
    /// node K, the coordinator on node 0.
    pub here: Option<Here>,
}

impl PoseidonPlan {
    /// The workers that run here.
    pub(super) fn workers_here(&self) -> Range<u16> {
        match &self.here {
            Some(here) => here.node..here.node + 1,
            None => 0..self.cluster.workers,
        }
    }

    /// The servers that run here.
    pub(super) fn servers_here(&self) -> Range<u16> {
        let servers = self.cluster.servers;
        match &self.here {
            Some(here) => here.node.min(servers)..(here.node + 1).min(servers),
            None => 0..servers,
        }
    }
}

/// A plan, and the part of its path.
pub(super) struct PlanOf<'a, P> {
    pub(super) job: &'a JobPlan,
    pub(super) own: &'a P,
}

impl<P> Clone for PlanOf<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for PlanOf<'_, P> {}
