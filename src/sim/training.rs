//! Training in virtual time: real gradients under the simulator's clock.
//!
//! Holds [`Training`]: solvers over the memory of a [`Fleet`], the production streamers between
//! them. A solver reads the weights when its step begins and adds its update when it ends, a step's
//! time later. Everything follows from the seeds: a run that diverges does so again, at the same
//! iteration.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Faults, Fleet, STEP_NS, World};
use crate::node::{NetError, Transforms, bound_net, train_batch};
use crate::solver::data::{Batches, BatchesError, DataSet, Shard};
use crate::solver::{Caution, Cluster, Net, Phase, SolverSpec, halve_momentum, update_in_cluster};
use crate::stream::{Config, Settled};
use crate::weights::{StateError, WeightsView};

mod testing;

/// Longest virtual time that nodes are waited for, ns.
const MOST_NS: u64 = 600_000_000_000;

/// Why a training in virtual time cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// The model and the pictures do not fit.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The pictures cannot be read.
    #[error(transparent)]
    Batches(#[from] BatchesError),
    /// The streamers' state files cannot be made.
    #[error(transparent)]
    State(#[from] StateError),
}

/// How the solvers work.
#[derive(Clone, Debug)]
pub struct Solvers {
    /// Model and hyper-parameters.
    pub spec: SolverSpec,
    /// Solvers on each node.
    pub per_node: u16,
    /// Time of one step of a solver, ns, for each node.
    pub step_ns: Vec<u64>,
    /// Share by which a step may take more or less time, drawn each time, 0 to 1.
    pub jitter: f64,
    /// Instead of that: how long the steps of a solver take, one after the other and then again, in
    /// times of `step_ns`. Each solver begins at another place. Empty: drawn.
    pub recording: Arc<[f64]>,
    /// Whether solvers shorten their steps when the loss rises, as real solvers do.
    pub cautious: bool,
    /// Seed of first weights, order of pictures, and times.
    pub seed: u64,
    /// When which nodes stand still, as after SIGSTOP.
    pub pauses: Vec<Pause>,
}

/// A time in which a node stands still: its streamer and its solvers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Which node.
    pub node: u16,
    /// When it stops, virtual ns of training.
    pub from_ns: u64,
    /// For how long, ns.
    pub for_ns: u64,
}

impl Pause {
    fn holds(&self, node: u16, now_ns: u64) -> bool {
        node == self.node && (self.from_ns..self.from_ns + self.for_ns).contains(&now_ns)
    }
}

/// A solver between two steps of the clock.
struct Solver {
    node: u16,
    net: Net,
    batches: Batches,
    history: Vec<AtomicU32>,
    grads: Vec<f32>,
    caution: Caution,
    /// When its step ends, ns.
    ends_ns: u64,
    /// Its place in the recording of times.
    place: usize,
}

/// A training in virtual time.
pub struct Training<'a> {
    world: World<'a>,
    fleet: &'a Fleet,
    solvers: Vec<Solver>,
    how: Solvers,
    /// When the streamers had seen all ranges, virtual ns; none: they have not.
    began_ns: Option<u64>,
    /// Iterations of each node.
    iterations: Vec<u64>,
    rng: Xoshiro256PlusPlus,
    loss: f32,
    /// Sum and number of strides.
    strides: (f64, u64),
    halvings: u64,
    /// Time that steps took, all solvers together, ns.
    busy_ns: f64,
    /// `None`: solvers make steps still.
    stepped_ns: Option<u64>,
}

/// The number of weights that a fleet for `spec` and `data` must hold.
///
/// # Errors
/// The model does not fit the pictures.
pub fn weights_of(spec: &SolverSpec, data: &DataSet) -> Result<usize, TrainingError> {
    let batch = train_batch(&spec.net)?;
    let (train, shape) = (&data.train, data.train.shape);
    Ok(
        bound_net(&spec.net, Phase::Train, batch, shape, train.classes)?
            .0
            .extent(),
    )
}

/// The memory of all nodes, with the same first weights. State files go to `folder`.
///
/// # Errors
/// The model does not fit the pictures, or the folder has too little space.
pub fn fleet(
    config: &Config,
    solvers: &Solvers,
    data: &DataSet,
    folder: &Path,
) -> Result<Fleet, TrainingError> {
    let fleet = Fleet::new(config, folder)?;
    let batch = train_batch(&solvers.spec.net)?;
    let (shape, classes) = (data.train.shape, data.train.classes);
    let (net, _) = bound_net(&solvers.spec.net, Phase::Train, batch, shape, classes)?;
    for node in 0..config.nodes {
        net.initialise(fleet.weights(node), solvers.seed);
    }
    Ok(fleet)
}

impl<'a> Training<'a> {
    /// Solvers over `fleet`, whose streamers meet `faults`.
    ///
    /// # Errors
    /// The model does not fit the pictures.
    pub fn new(
        fleet: &'a Fleet,
        how: Solvers,
        data: &DataSet,
        faults: Faults,
    ) -> Result<Self, TrainingError> {
        let nodes = fleet.config.nodes;
        let train = Arc::new(data.train.clone());
        let of = Shard {
            index: 0,
            of: u32::from(nodes * how.per_node),
        };
        let mut solvers = Vec::new();
        for index in 0..nodes * how.per_node {
            let batch = train_batch(&how.spec.net)?;
            let (net, _) = bound_net(
                &how.spec.net,
                Phase::Train,
                batch,
                train.shape,
                train.classes,
            )?;
            let seed = how.seed ^ u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let shard = Shard {
                index: u32::from(index),
                ..of
            };
            let pictures = Transforms::of(&how.spec, &train).train;
            let batches =
                Batches::new(train.clone(), pictures, Phase::Train, batch, shard, seed, 0)?;
            let extent = net.extent();
            solvers.push(Solver {
                node: index / how.per_node,
                caution: Caution::new(net.classes()),
                net,
                batches,
                history: (0..extent).map(|_| AtomicU32::new(0)).collect(),
                grads: vec![0.0; extent],
                ends_ns: 0,
                place: usize::from(index) * how.recording.len() / usize::from(nodes * how.per_node),
            });
        }
        let mut world = World::new(fleet, faults, how.seed);
        world.burst = 32;
        Ok(Self {
            world,
            fleet,
            solvers,
            began_ns: None,
            iterations: vec![0; usize::from(nodes)],
            rng: Xoshiro256PlusPlus::seed_from_u64(how.seed),
            how,
            loss: 0.0,
            strides: (0.0, 0),
            halvings: 0,
            busy_ns: 0.0,
            stepped_ns: None,
        })
    }

    /// Lets the streamers see all ranges; false if they do not within ten virtual minutes.
    pub fn wait_ready(&mut self) -> bool {
        let nodes = self.fleet.config.nodes;
        while self.world.now_ns() < MOST_NS {
            if (0..nodes).all(|node| self.world.streamer(node).is_some_and(|one| one.ready())) {
                self.began_ns = Some(self.world.now_ns());
                return true;
            }
            self.step();
        }
        false
    }

    /// Iterations of the whole cluster.
    pub fn iterations(&self) -> u64 {
        self.iterations.iter().sum()
    }

    /// Virtual time of training: since the streamers had seen all ranges, ns.
    pub fn trained_ns(&self) -> u64 {
        self.began_ns.map_or(0, |began| self.world.now_ns() - began)
    }

    /// The world that the streamers live in.
    pub fn world(&mut self) -> &mut World<'a> {
        &mut self.world
    }

    /// Mean stride of the solvers since the start.
    pub fn stride(&self) -> f64 {
        self.strides.0 / self.strides.1.max(1) as f64
    }

    /// The part of it in which solvers made steps, ns: without what came to all nodes after them.
    pub fn stepped_ns(&self) -> u64 {
        self.stepped_ns.unwrap_or_else(|| self.trained_ns())
    }

    /// Share of the time of steps in which solvers computed.
    pub fn utilisation(&self) -> f64 {
        let stepped_ns = self.stepped_ns();
        let now = self.began_ns.unwrap_or(0) + stepped_ns;
        let left = |one: &Solver| one.ends_ns.saturating_sub(now) as f64;
        let busy_ns = self.busy_ns - self.solvers.iter().map(left).sum::<f64>();
        busy_ns / (stepped_ns as f64 * self.solvers.len() as f64)
    }

    /// Pictures of a step.
    pub fn batch(&self) -> usize {
        self.solvers.first().map_or(0, |one| one.net.batch_size())
    }

    /// Times that a solver has halved its steps because its loss rose.
    pub fn halvings(&self) -> u64 {
        self.halvings
    }

    /// Trains until the cluster has made `iterations`. The smoothed loss, or `None`: it is NaN or
    /// infinite.
    pub fn run(&mut self, iterations: u64) -> Option<f32> {
        while self.iterations() < iterations {
            self.step();
            for index in 0..self.solvers.len() {
                if self.solvers[index].ends_ns <= self.world.now_ns() && !self.end_step(index) {
                    return None;
                }
            }
        }
        Some(self.loss)
    }

    /// One step of the clock; nodes that stand still get no further in it.
    fn step(&mut self) {
        self.world.step();
        if self.how.pauses.is_empty() || self.began_ns.is_none() {
            return;
        }
        let now_ns = self.trained_ns();
        for node in 0..self.fleet.config.nodes {
            if self.how.pauses.iter().any(|one| one.holds(node, now_ns)) {
                self.world.pause(node);
                let under_way = |one: &&mut Solver| one.node == node && one.ends_ns > 0;
                for solver in self.solvers.iter_mut().filter(under_way) {
                    solver.ends_ns += STEP_NS;
                }
            } else if self.world.is_paused(node) {
                self.world.go_on(node);
            }
        }
    }

    /// Ends the step of a solver, if one is under way, and begins the next.
    fn end_step(&mut self, index: usize) -> bool {
        let solver = &mut self.solvers[index];
        let node = solver.node;
        let w = self.fleet.weights(node);
        let Some(streamer) = self.world.streamer(node) else {
            return true;
        };
        if solver.ends_ns > 0 {
            let cluster = Cluster {
                portion: streamer.portion(),
                most_stride: streamer.most_stride(),
                own: streamer.streamed_weights(),
                crew: f32::from(self.how.per_node),
            };
            let known = self.iterations[usize::from(node)] + streamer.remote_iterations();
            let rate = self.how.spec.rate_at(known) * solver.caution.factor();
            let stride = update_in_cluster(
                &self.how.spec,
                &solver.net,
                w,
                &solver.grads,
                WeightsView::of(&solver.history),
                rate,
                &cluster,
            );
            self.strides = (self.strides.0 + f64::from(stride), self.strides.1 + 1);
            self.iterations[usize::from(node)] += 1;
            let made = self.iterations[usize::from(node)];
            self.world.set_iterations(node, made);
        }
        let batch = solver.batches.next();
        let loss = solver
            .net
            .forward_backward(w, &batch.images, &batch.labels, &mut solver.grads);
        if self.how.cautious && solver.caution.note(loss) {
            self.halvings += 1;
            halve_momentum(WeightsView::of(&solver.history));
        }
        self.loss = if self.loss == 0.0 {
            loss
        } else {
            0.95 * self.loss + 0.05 * loss
        };
        let drawn = 1.0 + self.how.jitter * self.rng.random_range(-1.0..=1.0);
        let recorded = self.how.recording.get(solver.place);
        solver.place = (solver.place + 1) % self.how.recording.len().max(1);
        let time_ns = self.how.step_ns[usize::from(node)] as f64 * recorded.unwrap_or(&drawn);
        self.busy_ns += time_ns;
        solver.ends_ns = self.world.now_ns() + time_ns as u64;
        loss.is_finite()
    }

    /// Ends the training: solvers make no more steps, and what they did comes to all nodes. False
    /// if it does not within ten virtual minutes.
    pub fn finish(&mut self) -> bool {
        let nodes = self.fleet.config.nodes;
        if nodes == 1 {
            return true;
        }
        self.stepped_ns = Some(self.trained_ns());
        (0..nodes).for_each(|node| self.world.finish(node, 1));
        let until_ns = self.world.now_ns() + MOST_NS;
        while self.world.now_ns() < until_ns {
            let mut streamers = (0..nodes).filter_map(|node| self.world.streamer(node));
            if streamers.all(|one| one.settled() == Settled::Equal) {
                return true;
            }
            self.step();
        }
        false
    }
}

#[cfg(test)]
mod tests;
