//! A whole cluster in one process: coordinator, servers and workers as threads, over TCP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use dogwild::device::Which;
use dogwild::job::{BufferPlan, make_buffer};
use dogwild::poseidon::{
    CaffeModel, ClusterKey, ClusterSpec, CoordinatorJob, MemberJob, ModelJob, Overlap, PAIR_BYTES,
    Partition, Policy, PoseidonError, Reads, Scheme, ServerJob, Stragglers, WorkerJob,
    run_coordinator, run_server, run_worker,
};
use dogwild::solver::SolverSpec;
use dogwild::solver::data::Source;
use dogwild::weights::Existing;
use tempfile::TempDir;

use crate::support::shm::shm_folder;

pub(crate) const SESSION: u64 = 0x905e_1d0a;
pub(crate) const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Changes Caffe's model of a member.
pub(crate) fn alter(model: &mut ModelJob, change: impl FnOnce(&mut CaffeModel)) {
    let mut caffe = model.caffe().expect("Caffe's").clone();
    change(&mut caffe);
    *model = ModelJob::of_caffe(caffe);
}

/// What to run.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) cluster: ClusterSpec,
    pub(crate) spec: SolverSpec,
    pub(crate) data: Source,
    pub(crate) overlap: Overlap,
    pub(crate) threads: usize,
    /// As many as threads, or none.
    pub(crate) devices: Vec<Which>,
    pub(crate) seed: u64,
}

/// LeNet on a batch of `batch`.
pub(crate) fn lenet(batch: usize) -> SolverSpec {
    let net = include_str!("../../models/lenet_train_test.prototxt");
    let net = net.replace("batch_size: 64", &format!("batch_size: {batch}"));
    let solver = include_str!("../../models/lenet_solver.prototxt");
    SolverSpec::parse("lenet", solver, |_| Ok(("net".into(), net))).expect("LeNet")
}

/// As many servers, or as few as can be where none would hold anything: none at all, and one.
pub(crate) fn servers(policy: Policy, most: u16) -> u16 {
    match policy {
        Policy::Force(Scheme::P2p) => 0,
        Policy::Cheapest => 1,
        _ => most,
    }
}

pub(crate) fn setup(policy: Policy, workers: u16, servers: u16, clocks: u64) -> Setup {
    Setup {
        cluster: ClusterSpec {
            workers,
            servers,
            images: 0,
            policy,
            pair_bytes: PAIR_BYTES,
            partition: Partition::Pairs,
            staleness: 0,
            reads: Reads::Own,
            stragglers: Stragglers::Wait,
            clocks,
            checkpoint_every: 0,
            recipe: String::new(),
        },
        spec: lenet(8),
        data: "digits:1,train=400,test=100".parse().expect("a source"),
        overlap: Overlap::Wfbp,
        threads: 1,
        devices: Vec::new(),
        seed: 3,
    }
}

pub(crate) fn force(scheme: Scheme) -> Policy {
    Policy::Force(scheme)
}

/// How a member ended.
pub(crate) type Ended = Result<(), PoseidonError>;

/// A cluster's folder, buffers and results.
pub(crate) struct Cluster {
    pub(crate) setup: Setup,
    /// Workers that are not started here, because the test plays them.
    pub(crate) absent: u16,
    pub(crate) key: Option<ClusterKey>,
    pub(crate) worker_bytes_per_s: Option<f64>,
    pub(crate) server_bytes_per_s: Option<f64>,
    /// Where server 0 listens.
    pub(crate) server_listens: SocketAddr,
    pub(crate) folder: TempDir,
    shm: TempDir,
}

impl Cluster {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            setup,
            absent: 0,
            key: None,
            worker_bytes_per_s: None,
            server_bytes_per_s: None,
            server_listens: LOOPBACK,
            folder: tempfile::tempdir().expect("a folder"),
            shm: shm_folder(),
        }
    }

    pub(crate) fn model(&self) -> ModelJob {
        let (input, classes) = self.setup.data.shape();
        ModelJob::of_caffe(CaffeModel {
            spec: self.setup.spec.clone(),
            input,
            classes,
            seed: self.setup.seed,
            threads: self.setup.threads,
            replay: None,
        })
    }

    pub(crate) fn coordinator(&self, resume: bool) -> CoordinatorJob {
        CoordinatorJob {
            listen: LOOPBACK,
            address_file: Some(self.folder.path().join("coordinator")),
            session: SESSION,
            model: self.model(),
            data: Some(self.setup.data.clone()),
            cluster: self.setup.cluster.clone(),
            resume,
            key: self.key.clone(),
        }
    }

    pub(crate) fn member(&self, index: u16, coordinator: &str, resume: bool) -> MemberJob {
        let saves = self.setup.cluster.checkpoint_every > 0;
        MemberJob {
            index,
            coordinator: coordinator.into(),
            listen: LOOPBACK,
            checkpoints: saves.then(|| self.folder.path().join("checkpoints")),
            resume,
            key: self.key.clone(),
            bandwidth_bytes_per_s: None,
            report: None,
        }
    }

    pub(crate) fn server(&self, index: u16, coordinator: &str, resume: bool) -> ServerJob {
        let report = Some(self.folder.path().join(format!("server{index}.json")));
        ServerJob {
            told: None,
            member: MemberJob {
                report,
                bandwidth_bytes_per_s: self.server_bytes_per_s,
                listen: match index {
                    0 => self.server_listens,
                    _ => LOOPBACK,
                },
                ..self.member(index, coordinator, resume)
            },
            session: SESSION,
            model: self.model(),
        }
    }

    pub(crate) fn buffer(&self, worker: u16) -> PathBuf {
        self.shm.path().join(format!("n{worker}"))
    }

    pub(crate) fn worker(&self, index: u16, coordinator: &str, resume: bool) -> WorkerJob {
        let (input, classes) = self.setup.data.shape();
        let path = self.buffer(index);
        make_buffer(&BufferPlan {
            path: &path,
            spec: &self.setup.spec,
            data: &self.setup.data,
            input,
            classes,
            session: SESSION,
            nodes: 1,
            seed: self.setup.seed,
            iterations: 0,
            weights: None,
            existing: Existing::Resume,
        })
        .expect("a buffer");
        let report = Some(self.folder.path().join(format!("worker{index}.json")));
        WorkerJob {
            slow: 1.0,
            member: MemberJob {
                report,
                bandwidth_bytes_per_s: self.worker_bytes_per_s,
                ..self.member(index, coordinator, resume)
            },
            buffer: path,
            model: self.model(),
            data: self.setup.data.clone(),
            private_data: false,
            devices: self.setup.devices.clone(),
            overlap: self.setup.overlap,
            seed: self.setup.seed,
            test_every: 0,
            test_images: 0,
            target_accuracy: None,
            curve: None,
        }
    }

    /// Runs coordinator, servers and workers, each changed by `change`, to their ends. The first
    /// error stops all others, unless the test plays a worker: then the members must notice by
    /// themselves.
    pub(crate) fn run_with(
        &self,
        resume: bool,
        change: impl Fn(&mut WorkerJob) + Sync,
    ) -> Vec<(String, Ended)> {
        self.run_with_client(resume, change, |_| {})
    }

    /// As [`Cluster::run_with`], while `client` runs with the coordinator's address.
    pub(crate) fn run_with_client(
        &self,
        resume: bool,
        change: impl Fn(&mut WorkerJob) + Sync,
        client: impl FnOnce(&str),
    ) -> Vec<(String, Ended)> {
        let (stop, cluster) = (Arc::new(AtomicBool::new(false)), &self.setup.cluster);
        let address = self.folder.path().join("coordinator");
        let _ = std::fs::remove_file(&address);
        let ends = |run: &dyn Fn() -> Ended| {
            let ended = run();
            if ended.is_err() && self.absent == 0 {
                // Who is told why at the same moment is to end by that, and not because it is asked
                // to stop.
                std::thread::sleep(std::time::Duration::from_millis(500));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            ended
        };
        std::thread::scope(|scope| {
            let mut members = Vec::new();
            let (stop, change, ends) = (&stop, &change, &ends);
            let job = self.coordinator(resume);
            let run = scope.spawn(move || ends(&|| run_coordinator(&job, stop)));
            members.push(("coordinator".to_owned(), run));
            if let Some(at) = wait_for_file(&address, || members[0].1.is_finished()) {
                for index in 0..cluster.servers {
                    let job = self.server(index, &at, resume);
                    let run = scope.spawn(move || ends(&|| run_server(&job, stop)));
                    members.push((format!("server {index}"), run));
                }
                for index in 0..cluster.workers - self.absent {
                    let mut job = self.worker(index, &at, resume);
                    change(&mut job);
                    let run = scope.spawn(move || ends(&|| run_worker(&job, stop)));
                    members.push((format!("worker {index}"), run));
                }
                client(&at);
            }
            let join = |(name, run): (String, ScopedJoinHandle<'_, Ended>)| {
                (name, run.join().expect("no panic"))
            };
            members.into_iter().map(join).collect()
        })
    }

    /// As [`Cluster::run_with`]; all must end well. Gives the weights of each worker.
    pub(crate) fn run(&self) -> Vec<Vec<f32>> {
        for (name, result) in self.run_with(false, |_| {}) {
            result.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        (0..self.setup.cluster.workers)
            .map(|k| self.weights(k))
            .collect()
    }

    /// Weights of a worker's buffer.
    pub(crate) fn weights(&self, worker: u16) -> Vec<f32> {
        use dogwild::weights::{Expect, SharedWeights};
        let path = self.buffer(worker);
        let shared = SharedWeights::open(&path, &Expect::default()).expect("the buffer");
        (0..shared.used()).map(|i| shared.view().load(i)).collect()
    }
}

/// The text of a file, as soon as it is there.
pub(crate) fn wait_for_file(path: &Path, mut given_up: impl FnMut() -> bool) -> Option<String> {
    loop {
        if let Ok(text) = std::fs::read_to_string(path) {
            return Some(text);
        }
        if given_up() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
