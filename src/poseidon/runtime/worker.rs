//! A worker's process: threads that compute, a syncer per layer, connections to servers and peers.
//!
//! Holds the settings of a worker and its setup. `hub` has the syncers and the connections, `pass`
//! the threads that compute, `local` adds up their gradients, `lead` has the loop over iterations.

mod hub;
mod lead;
mod local;
mod pass;
mod peers;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::arithmetic::SolverArithmetic;
use super::budget::Budget;
use super::checkpoint::{CheckpointFolder, Loaded};
use super::error::PoseidonError;
use super::join::{Joined, join};
use super::link::Incoming;
use super::member::{MemberJob, close_all, identity, keep_common, receive_until_bye};
use super::model::{Model, ModelJob, hash};
use super::shutdown::Shutdown;
use super::traffic::Traffic;
use crate::node::{SolverError, Tester, Transforms};
use crate::poseidon::{Destination, Member, MemberHello, MemberRole, Syncer};
use crate::solver::data::{Images, Shard, Source, Transform};
use crate::weights::{Expect, Role, SharedWeights, SolverState, WeightsView, kernels};
use hub::Hub;
use lead::Lead;
use pass::Input;

/// When a layer's gradient is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// As soon as a layer's backward pass is done (wait-free backpropagation).
    Wfbp,
    /// After the backward pass of all layers.
    None,
}

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerJob {
    /// Its place in the cluster.
    pub member: MemberJob,
    /// The buffer to train. Its session is the job's.
    pub buffer: PathBuf,
    /// The model that all members train.
    pub model: ModelJob,
    /// Training and test pictures.
    pub data: Source,
    /// All of `data` belongs to this worker; else it takes its share.
    pub private_data: bool,
    /// When a layer's gradient is sent.
    pub overlap: Overlap,
    /// Its passes take so many times longer than they need, by resting after each; 1: no rest.
    pub slow: f64,
    /// Seed of the order of pictures and of mirroring and cropping.
    pub seed: u64,
    /// Iterations between tests by worker 0; 0: no tests.
    pub test_every: u64,
    /// Test pictures of a test on the way; 0: all.
    pub test_images: usize,
    /// End when a test reaches this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Where rows of the learning curve go.
    pub curve: Option<PathBuf>,
}

/// Trains until all iterations are done, the target is reached, or the first error.
pub fn run_worker(job: &WorkerJob, stop: &AtomicBool) -> Result<(), PoseidonError> {
    let budget = job.member.bandwidth()?.map(Budget::new);
    let work = input(job)?;
    let model = job.model.open()?;
    let fingerprint = model.manifest.fingerprint();
    let expect = Expect {
        session: None,
        fingerprint: Some(fingerprint),
        data: job.model.data(&job.data),
    };
    let shared = SharedWeights::open(&job.buffer, &expect).map_err(SolverError::from)?;
    let path = SolverState::path_beside(&job.buffer, 0);
    let (state, _) = SolverState::open_or_create(&path, shared.id(), shared.padded())
        .map_err(SolverError::from)?;
    let slot = shared
        .claim_slot(Role::Solver, 0)
        .map_err(SolverError::from)?;
    let member = Member {
        role: MemberRole::Worker,
        index: job.member.index,
    };
    let folder = job.member.folder(member)?;
    let first = job.model.first_weights(&model)?;
    let (checkpoints, replicas) = job.member.whole(folder.as_ref())?;
    let listener = job.member.listener()?;
    let hello = MemberHello {
        member,
        session: shared.session(),
        fingerprint,
        recipe: job.model.recipe(),
        weights: hash(&first),
        images: model.images,
        data: expect.data.map_or(String::new(), |kind| kind.to_string()),
        address: String::new(),
        checkpoints,
        replicas,
    };
    let Some(joined) = join(&job.member, hello, &listener, stop)? else {
        return Ok(());
    };
    let worker = Worker {
        job,
        model: &model,
        shared: &shared,
        state: &state,
        folder,
    };
    let saved = worker.begin(&joined, WeightsView::of(&first))?;
    let shutdown = Shutdown::new(stop);
    let traffic = worker.run(
        joined,
        listener,
        work,
        saved,
        budget,
        &shutdown,
        slot.meters(),
        &|| {
            slot.heartbeat();
        },
    )?;
    shutdown.into_result()?;
    job.member.write_report(&traffic.report())
}

/// The work of the computing threads, and test pictures unless a recording is replayed.
fn input(job: &WorkerJob) -> Result<(Input, Option<TestPictures>), PoseidonError> {
    if let Some(recording) = &job.model.replay {
        return Ok((Input::Recording(recording.clone()), None));
    }
    let set = job.data.load().map_err(SolverError::from)?;
    let transform = Transforms::of(&job.model.spec, &set.train).test;
    let train = Input::Pictures(Arc::new(set.train));
    Ok((train, Some((transform, set.test))))
}

/// What a worker has opened before it joins the cluster.
struct Worker<'w> {
    job: &'w WorkerJob,
    model: &'w Model,
    shared: &'w SharedWeights,
    state: &'w SolverState,
    folder: Option<CheckpointFolder>,
}

/// The member at the other end of a connection, the reading half, and the member's name for
/// messages.
type Connection = (Member, Incoming, String);

/// Pictures to test on, and what is done to them.
type TestPictures = (Transform, Images);

/// Meters of the buffer's slot.
type Meters = [std::sync::atomic::AtomicU64; crate::weights::METERS];

impl Worker<'_> {
    /// Sets the buffer and the momentum to the state that the run begins with: that of the
    /// checkpoint that all members have, or the first weights.
    fn begin(
        &self,
        joined: &Joined,
        first: WeightsView<'_>,
    ) -> Result<Option<Loaded>, PoseidonError> {
        // One that comes late begins with what the servers send it.
        let start = match joined.cluster.late {
            true => 0,
            false => joined.cluster.start,
        };
        let (w, history) = (self.shared.view(), self.state.history());
        let mut saved = None;
        if let (Some(folder), 1..) = (&self.folder, start) {
            let loaded = folder.load(start, &identity(&joined.cluster, self.model))?;
            for tensor in &self.model.tensors {
                for (kind, to) in [("weights", w), ("history", history)] {
                    let array = loaded.array(&format!("{}.{kind}", tensor.name), tensor.len)?;
                    kernels::copy_in(to.slice(tensor.offset, tensor.len), &array);
                }
            }
            saved = Some(loaded);
        } else {
            let mut values = vec![0.0; first.len()];
            kernels::copy_out(first, &mut values);
            kernels::copy_in(w.slice(0, values.len()), &values);
            values.fill(0.0);
            kernels::copy_in(history.slice(0, values.len()), &values);
        }
        let globals = self.shared.globals();
        globals.local_iterations.store(start, Relaxed);
        globals
            .target_iterations
            .store(joined.cluster.plan.clocks, Relaxed);
        Ok(saved)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "everything that was opened for the run; called once"
    )]
    fn run(
        &self,
        joined: Joined,
        listener: TcpListener,
        (input, test): (Input, Option<TestPictures>),
        saved: Option<Loaded>,
        budget: Option<Budget<Destination>>,
        shutdown: &Shutdown<'_>,
        meters: &Meters,
        heartbeat: &dyn Fn(),
    ) -> Result<Arc<Traffic>, PoseidonError> {
        let Joined {
            cluster,
            hello,
            link,
            mut incoming,
            who,
        } = joined;
        let plan = &cluster.plan;
        let mut syncers: Vec<Syncer> = (0..plan.layers.len())
            .map(|layer| Syncer::new(plan, layer, self.job.member.index, cluster.start))
            .collect();
        for syncer in &mut syncers {
            if let Some(saved) = &saved {
                syncer.restore(|name, len| saved.array(name, len))?;
            }
        }
        let math = SolverArithmetic::new(&self.job.model.spec, self.model, self.job.model.threads);
        let views = [self.shared.view(), self.state.history()];
        let hub = Hub::new(&cluster, syncers, views, math, budget, shutdown);
        let tester = self.tester(test)?;
        let (threads, local) = pass::threads(self, plan, input, saved.as_ref())?;
        let (hub, local) = (&hub, &local);
        std::thread::scope(|scope| {
            let adding = local.closing();
            let folder = self.folder.clone();
            hub.reading(scope, move |hub| {
                receive_until_bye(&mut incoming, &who, hub.shutdown, |message| {
                    keep_common(folder.as_ref(), &message);
                    hub.on_coordinator_message(&message);
                });
            });
            hub.register_coordinator(link);
            let trained = self
                .connect(&cluster, &hello, listener, hub)
                .and_then(|connections| {
                    for (member, incoming, who) in connections {
                        hub.reading(scope, move |hub| {
                            hub.read(incoming, (member.role, member.index), &who);
                        });
                    }
                    hub.start(scope);
                    for thread in 0..self.job.model.threads {
                        scope.spawn(move || local.work(thread, hub));
                    }
                    let lead = Lead::new(self, hub, &cluster, meters, heartbeat, saved.as_ref())?;
                    lead.run(scope, threads, local, hub, tester)
                });
            drop(adding);
            if let Err(error) = trained {
                shutdown.fail(error);
            }
            hub.send_bye_and_wait(self.job.member.index);
            close_all(hub.take_links(), shutdown, || hub.readers());
        });
        Ok(hub.traffic())
    }

    /// What worker 0 tests the weights with.
    fn tester(&self, test: Option<TestPictures>) -> Result<Option<Tester>, PoseidonError> {
        let job = self.job;
        let (0, 1.., Some((transform, images))) = (job.member.index, job.test_every, test) else {
            return Ok(None);
        };
        let tester = Tester::new(&job.model.spec, transform, images, job.test_images)?;
        Ok(Some(tester))
    }

    /// This worker's share of the pictures for thread `thread`.
    fn shard(&self, workers: u16, thread: usize) -> Shard {
        let threads = self.job.model.threads as u32;
        let (first, of) = match self.job.private_data {
            true => (0, threads),
            false => (
                u32::from(self.job.member.index) * threads,
                u32::from(workers) * threads,
            ),
        };
        Shard {
            index: first + thread as u32,
            of,
        }
    }
}
