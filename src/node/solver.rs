//! The solver component: SGD on the shared buffer, at its own pace.
//!
//! Reads weights that others change meanwhile, computes a gradient on its own batch, adds its
//! update racily. The learning rate follows the iterations of the whole cluster. Momentum and the
//! place in the data are in the solver's state file, so that a killed solver goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::clock::{Clock, cpu_ns};
use super::line::Line;
use super::model::{NetError, bound_net, data_kind, train_batch};
use super::ready::{is_finished, number_here, wait_until_ready};
use super::solver_error::SolverError;
use super::tester::{Tester, Transforms};
use super::testing::{Moment, Schedule, Testing};
use super::train_clock::TrainClock;
use super::turn::Turn;
use crate::solver::data::{Batches, Images, Shard, Source};
use crate::solver::{
    Caution, Cluster, Crew, Net, Phase, SolverSpec, halve_momentum, update_in_cluster,
};
use crate::watch::SolverMeter;
use crate::watch::curve::CurveWriter;
use crate::weights::{Expect, METERS, Manifest, Role, SharedWeights, SolverState};

/// Share of the newest loss in the smoothed one.
const LOSS_SMOOTHING: f32 = 0.05;

/// Time between two looks at the own CPU time.
const CPU_EVERY_NS: u64 = 500_000_000;

/// What a solver is started with.
#[derive(Clone, Debug)]
pub struct SolverJob {
    /// The buffer to train.
    pub buffer: PathBuf,
    /// Model and hyper-parameters.
    pub spec: SolverSpec,
    /// Training and test pictures.
    pub data: Source,
    /// This solver's number on this buffer, from 0.
    pub index: u32,
    /// This solver's number in the whole cluster, and how many there are: its share of the data.
    /// `None`: by its node and the two numbers that follow.
    pub shard: Option<Shard>,
    /// Node index; `None`: that of the buffer's streamer.
    pub node: Option<u16>,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Solvers of each.
    pub solvers: u32,
    /// Seed of the order of pictures and of mirroring and cropping.
    pub seed: u64,
    /// Iterations between tests, of the cluster; 0: no tests.
    pub test_every: u64,
    /// Which of those tests are this solver's, where nodes take turns.
    pub test_turn: Shard,
    /// Test pictures of a test on the way; 0: all.
    pub test_images: usize,
    /// Stop when a test reaches this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Steps per second, at most.
    pub pace_steps: Option<f64>,
    /// Most steps of this node's solvers that what it knows of another node's range may be old.
    pub max_age: Option<u64>,
    /// Where rows of the learning curve go.
    pub curve: Option<PathBuf>,
}

impl SolverJob {
    /// Its share of the pictures on `node`.
    fn shard_of(&self, node: u16) -> Shard {
        self.shard.unwrap_or(Shard {
            index: u32::from(node) * self.solvers + self.index,
            // Who joins later has a share as if it had been there.
            of: u32::from(self.nodes.max(node + 1)) * self.solvers,
        })
    }
}

/// Trains until the target that the buffer names is reached or `stop` is set.
pub fn run_solver(job: &SolverJob, stop: &AtomicBool) -> Result<(), SolverError> {
    let set = job.data.load()?;
    let mean_from = Transforms::of(&job.spec, &set.train);
    let mut trainer = Trainer::new(&job.spec, &set.train)?;
    let expect = Expect {
        session: None,
        fingerprint: Some(trainer.manifest.fingerprint()),
        data: Some(data_kind(&job.data, set.train.shape, set.train.classes)),
    };
    let shared = SharedWeights::open(&job.buffer, &expect)?;
    let path = SolverState::path_beside(&job.buffer, job.index);
    let (state, resumed) = SolverState::open_or_create(&path, shared.id(), shared.padded())?;
    let slot = shared.claim_slot(Role::Solver, job.index)?;
    // Who had the slot last may have said that it adds nothing more.
    SolverMeter::Finished.set(slot.meters(), 0);
    if resumed {
        log::info!(
            "going on at batch {} with the momentum left by the last solver",
            state.progress().cursor.load(Relaxed)
        );
    }
    if !wait_until_ready(&shared, stop) {
        return Ok(());
    }
    let node = job.node.unwrap_or_else(|| number_here(&shared));
    let shard = job.shard_of(node);
    let seed = job.seed ^ u64::from(shard.index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let cursor = state.progress().cursor.load(Relaxed);
    trainer.seed_dropout(seed, cursor);
    let mut batches = Batches::new(
        Arc::new(set.train),
        mean_from.train,
        Phase::Train,
        trainer.net.batch_size(),
        shard,
        seed,
        cursor,
    )?;
    let testing = if job.index == 0 && job.test_every > 0 {
        let tester = Tester::new(&job.spec, mean_from.test, set.test, job.test_images)?;
        let curve = job.curve.as_deref().map(CurveWriter::append).transpose()?;
        let schedule = Schedule {
            node,
            index: job.index,
            every: job.test_every,
            turn: job.test_turn,
            target_accuracy: job.target_accuracy,
        };
        Some(Testing::new(tester, curve, schedule, &shared))
    } else {
        None
    };
    let mut run = Run {
        job,
        shared: &shared,
        state: &state,
        meters: slot.meters(),
        clock: Clock::start(),
        trained: TrainClock::go_on(state.progress().elapsed_ns.load(Relaxed)),
        loss: state.progress().loss(),
        caution: Caution::from_words(state.progress().caution_words(), trainer.net.classes()),
        crew: Crew::default(),
        line: Line::new(slot.meters()[SolverMeter::Iterations as usize].load(Relaxed)),
        turn: Turn::new(job.pace_steps, job.max_age, &shared),
        cpu_due_ns: 0,
    };
    run.train(&mut trainer, &mut batches, testing, stop, || {
        slot.heartbeat()
    })
}

/// The smoothed loss after the newest.
pub(super) fn smoothed(before: Option<f32>, loss: f32) -> f32 {
    before.map_or(loss, |before| before + LOSS_SMOOTHING * (loss - before))
}

/// A training net with its gradient memory.
struct Trainer {
    net: Net,
    manifest: Manifest,
    grads: Vec<f32>,
}

impl Trainer {
    fn new(spec: &SolverSpec, images: &Images) -> Result<Self, NetError> {
        let batch = train_batch(&spec.net)?;
        let (net, manifest) =
            bound_net(&spec.net, Phase::Train, batch, images.shape, images.classes)?;
        let grads = vec![0.0; net.extent()];
        Ok(Self {
            net,
            manifest,
            grads,
        })
    }

    /// Masks go on where the last process stopped, as pictures do: each pass took a batch.
    fn seed_dropout(&mut self, seed: u64, cursor: u64) {
        self.net.seed_dropout(seed);
        let passes = cursor / self.net.batch_size() as u64;
        self.net
            .resume_passes(self.net.passes().wrapping_add(passes));
    }
}

struct Run<'a> {
    job: &'a SolverJob,
    shared: &'a SharedWeights,
    state: &'a SolverState,
    meters: &'a [AtomicU64; METERS],
    clock: Clock,
    trained: TrainClock,
    loss: Option<f32>,
    caution: Caution,
    crew: Crew,
    line: Line,
    turn: Turn,
    /// When its CPU time is told next: reading it takes as long as a small layer.
    cpu_due_ns: u64,
}

impl Run<'_> {
    /// Iterations of all solvers of all nodes, as far as known here.
    fn cluster_iterations(&self) -> u64 {
        self.shared.globals().iterations()
    }

    /// Time of training so far, ns; kept for the next process of this solver, and for snapshots,
    /// which take the rows of the curve up to it.
    fn note_elapsed(&mut self) -> u64 {
        let elapsed_ns = self.trained.elapsed_ns(self.shared.globals());
        let progress = self.state.progress();
        progress.elapsed_ns.store(elapsed_ns, Relaxed);
        elapsed_ns
    }

    fn train(
        &mut self,
        trainer: &mut Trainer,
        batches: &mut Batches,
        mut testing: Option<Testing>,
        stop: &AtomicBool,
        heartbeat: impl Fn(),
    ) -> Result<(), SolverError> {
        while !is_finished(self.shared, stop) {
            if let Some(testing) = &mut testing
                && testing.is_due(self.shared)
            {
                self.test(testing, stop)?;
                continue;
            }
            let waited_ns = self.wait_for_turn(stop);
            SolverMeter::WaitedNs.add(self.meters, waited_ns);
            self.step(trainer, batches)?;
            heartbeat();
            let (loss, now_ns) = (self.loss, self.clock.now_ns());
            self.line.say(self.shared, self.meters, loss, now_ns);
            if now_ns >= self.cpu_due_ns {
                self.cpu_due_ns = now_ns + CPU_EVERY_NS;
                SolverMeter::CpuNs.set(self.meters, cpu_ns());
            }
        }
        if let (Some(testing), false) = (&mut testing, stop.load(Relaxed)) {
            self.test(testing, stop)?;
        }
        SolverMeter::CpuNs.set(self.meters, cpu_ns());
        Line::say_totals(self.meters);
        Ok(())
    }

    /// Waits until the next step may begin; the time that was waited for other nodes, ns.
    fn wait_for_turn(&mut self, stop: &AtomicBool) -> u64 {
        let (shared, clock) = (self.shared, self.clock);
        self.turn.wait(shared, &clock, || is_finished(shared, stop))
    }

    fn step(&mut self, trainer: &mut Trainer, batches: &mut Batches) -> Result<(), SolverError> {
        let globals = self.shared.globals();
        let rate = match f32::from_bits(globals.rate_bits.load(Relaxed)) {
            0.0 => self.job.spec.rate_at(self.cluster_iterations()),
            set_by_operator => set_by_operator,
        };
        let w = self.shared.view();
        let (mut loss, mut images, mut train_ns) = (0.0, 0, 0);
        for part in 0..self.job.spec.iter_size {
            let batch = batches.next();
            let start = self.clock.now_ns();
            loss += match part {
                0 => trainer.net.forward_backward(
                    w,
                    &batch.images,
                    &batch.labels,
                    &mut trainer.grads,
                ),
                _ => trainer
                    .net
                    .add_gradients(w, &batch.images, &batch.labels, &mut trainer.grads),
            };
            images += batch.labels.len() as u64;
            train_ns += self.clock.now_ns() - start;
            self.state.progress().cursor.store(batch.cursor, Relaxed);
        }
        loss /= self.job.spec.iter_size as f32;
        if !loss.is_finite() {
            return Err(SolverError::Diverged {
                loss,
                iteration: self.cluster_iterations(),
            });
        }
        if self.caution.note(loss) {
            self.say_caution(loss);
            halve_momentum(self.state.history());
        }
        self.state.progress().set_caution(self.caution.to_words());
        let rate = rate * self.caution.factor();
        let start = self.clock.now_ns();
        let stride = update_in_cluster(
            &self.job.spec,
            &trainer.net,
            w,
            &trainer.grads,
            self.state.history(),
            rate,
            &Cluster::of(self.shared, &self.crew),
        );
        let all = globals.local_iterations.fetch_add(1, Relaxed);
        let own = self.state.progress().iteration.fetch_add(1, Relaxed);
        self.crew.note(own, all);
        self.note_elapsed();
        let smoothed = smoothed(self.loss, loss);
        self.loss = Some(smoothed);
        self.state.progress().set_loss(smoothed);
        SolverMeter::Iterations.add(self.meters, 1);
        SolverMeter::Images.add(self.meters, images);
        SolverMeter::TrainNs.add(self.meters, train_ns + self.clock.now_ns() - start);
        SolverMeter::LossBits.set(self.meters, u64::from(smoothed.to_bits()));
        SolverMeter::RateBits.set(self.meters, u64::from(rate.to_bits()));
        SolverMeter::StrideBits.set(self.meters, u64::from(stride.to_bits()));
        Ok(())
    }

    fn say_caution(&self, loss: f32) {
        SolverMeter::Halvings.add(self.meters, 1);
        log::warn!(
            "the loss rises (now {loss:.4}, {:.4} on average): steps are halved to {:.3} of the solver file's at \
             iteration {} of the cluster",
            self.loss.unwrap_or(loss),
            self.caution.factor(),
            self.cluster_iterations()
        );
    }

    /// Tests, with a row in the curve.
    fn test(&mut self, testing: &mut Testing, stop: &AtomicBool) -> Result<(), SolverError> {
        let moment = Moment {
            elapsed_ns: self.note_elapsed(),
            loss: self.loss,
        };
        testing.test(self.shared, self.meters, moment, stop)?;
        self.note_elapsed();
        Ok(())
    }
}
