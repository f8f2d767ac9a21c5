//! A worker's process: threads that compute, around a client.
//!
//! Holds the settings of a worker and its setup. `client` has all that concerns the cluster, `pass`
//! the threads that compute, `on_device` the nets of those whose device computes, `local` adds up
//! their gradients, `lead` has the loop over iterations.

mod lead;
mod local;
mod on_device;
mod pass;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::client::{Claims, Client, ClientJob, First, Replica};
use super::error::PoseidonError;
use super::member::MemberJob;
use super::model::{CaffeModel, Model, ModelJob};
use crate::device::Which;
use crate::node::{SolverError, Tester, Transforms};
use crate::solver::data::{Images, Shard, Source, Transform};
use crate::weights::{Expect, Role, SharedWeights, SolverState, WeightsView, kernels};
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
    /// Devices that compute, one for each of its threads; none: the threads compute.
    pub devices: Vec<Which>,
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

/// The buffer of a worker and its state, as a client's memory.
struct Buffer {
    shared: SharedWeights,
    state: SolverState,
}

impl Replica for Buffer {
    fn weights(&self) -> WeightsView<'_> {
        self.shared.view()
    }

    fn states(&self) -> usize {
        1
    }

    fn state(&self, which: usize) -> WeightsView<'_> {
        assert_eq!(which, 0, "a solver's state has one number per weight");
        self.state.history()
    }
}

/// Trains until all iterations are done, the target is reached, or the first error.
pub fn run_worker(job: &WorkerJob, stop: &Arc<AtomicBool>) -> Result<(), PoseidonError> {
    job.member.bandwidth()?;
    let caffe = job.model.caffe().ok_or(PoseidonError::NoSolver)?;
    let (devices, threads) = (job.devices.len(), caffe.threads);
    if devices > 0 && (devices != threads || caffe.replay.is_some()) {
        return Err(PoseidonError::Devices { devices, threads });
    }
    let work = input(job, caffe)?;
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
    let buffer = Arc::new(Buffer { shared, state });
    let slot = buffer
        .shared
        .claim_slot(Role::Solver, 0)
        .map_err(SolverError::from)?;
    let first = job.model.first_weights(&model)?;
    let mut weights = vec![0.0; first.len()];
    kernels::copy_out(WeightsView::of(&first), &mut weights);
    drop(first);
    let joining = ClientJob {
        member: job.member.clone(),
        claims: Claims {
            session: Some(buffer.shared.session()),
            fingerprint: Some(fingerprint),
            recipe: Some(job.model.recipe()),
            images: Some(model.images),
            data: expect.data.map_or(String::new(), |kind| kind.to_string()),
            weights: None,
        },
        first: First::Given(weights),
    };
    let Some(client) = Client::join(joining, Some(buffer.clone()), stop.clone())? else {
        return Ok(());
    };
    let worker = Worker {
        job,
        caffe,
        model: &model,
        buffer: &buffer,
        client: &client,
    };
    let heartbeat = || {
        slot.heartbeat();
    };
    if let Err(error) = worker.run(work, slot.meters(), &heartbeat) {
        client.abort(error);
    }
    client.close().map(drop)
}

/// The work of the computing threads, and test pictures unless a recording is replayed.
fn input(
    job: &WorkerJob,
    caffe: &CaffeModel,
) -> Result<(Input, Option<TestPictures>), PoseidonError> {
    if let Some(recording) = &caffe.replay {
        return Ok((Input::Recording(recording.clone()), None));
    }
    let set = job.data.load().map_err(SolverError::from)?;
    let transform = Transforms::of(&caffe.spec, &set.train).test;
    let train = Input::Pictures(Arc::new(set.train));
    Ok((train, Some((transform, set.test))))
}

/// A worker that has joined the cluster.
struct Worker<'w> {
    job: &'w WorkerJob,
    caffe: &'w CaffeModel,
    model: &'w Model,
    buffer: &'w Arc<Buffer>,
    client: &'w Client,
}

/// Pictures to test on, and what is done to them.
type TestPictures = (Transform, Images);

/// Meters of the buffer's slot.
type Meters = [std::sync::atomic::AtomicU64; crate::weights::METERS];

impl Worker<'_> {
    /// Starts the threads that compute, and trains to the end.
    fn run(
        &self,
        (input, test): (Input, Option<TestPictures>),
        meters: &Meters,
        heartbeat: &dyn Fn(),
    ) -> Result<(), PoseidonError> {
        let client = self.client;
        let globals = self.buffer.shared.globals();
        let begun = match client.book().late {
            true => 0,
            false => client.book().start,
        };
        globals.local_iterations.store(begun, Relaxed);
        globals
            .target_iterations
            .store(client.plan().clocks, Relaxed);
        let tester = self.tester(test)?;
        let (threads, local) = pass::threads(self, input)?;
        let local = &local;
        std::thread::scope(|scope| {
            let _adding = local.closing();
            for thread in 0..self.caffe.threads {
                scope.spawn(move || local.work(thread, client));
            }
            let lead = Lead::new(self, meters, heartbeat)?;
            lead.run(scope, threads, local, tester)
        })
    }

    /// What worker 0 tests the weights with.
    fn tester(&self, test: Option<TestPictures>) -> Result<Option<Tester>, PoseidonError> {
        let job = self.job;
        let (0, 1.., Some((transform, images))) = (job.member.index, job.test_every, test) else {
            return Ok(None);
        };
        let tester = Tester::new(&self.caffe.spec, transform, images, job.test_images)?;
        Ok(Some(tester))
    }

    /// This worker's share of the pictures for thread `thread`.
    fn shard(&self, workers: u16, thread: usize) -> Shard {
        let threads = self.caffe.threads as u32;
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
