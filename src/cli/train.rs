//! `dogwild train`: arguments of a whole job on this machine.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ArgGroup;
use serde::Serialize;
use serde_json::{Map, Value};

use super::args::{self, FaultArgs, TransportArgs};
use super::capture;
use super::closing::{Closing, close};
use super::exit;
use super::explicit::Explicit;
use super::job_file;
use super::lab_args::LabArgs;
use super::stream_args::StreamArgs;
use super::train_poseidon::{self, PoseidonArgs, STREAM_GROUP, Sync};
use crate::job::{
    DEFAULT_OUT, Ended, Experiment, Here, JobPlan, Old, OutFolder, Paces, PathPlan, PathSummary,
    Pause, Resume, SnapshotEvery, Solvers, StreamPlan, json, last_run, run,
};
use crate::node::{Stop, TEST_IMAGES, Transport, stop_on_signals};
use crate::settings::Devices;
use crate::solver::SolverSpec;
use crate::solver::data::Source;

/// Iterations when neither a solver file nor `--iterations` says otherwise: enough for the
/// built-in digits, and over in less than a minute.
pub(super) const DEFAULT_ITERATIONS: u64 = 3000;

/// Nodes of a job: progress and warnings keep one bit for each.
pub(super) const MOST_NODES: u16 = 64;

/// Tests that a curve needs at least.
const CURVE_TESTS: u64 = 20;

/// Arguments of `dogwild train`.
#[derive(Debug, clap::Args, Serialize)]
#[command(after_help = exit::TABLE, group = ArgGroup::new(STREAM_GROUP).multiple(true))]
pub(super) struct Args {
    /// Number of nodes, each with its own buffer
    #[arg(long, group = STREAM_GROUP, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_NODES)))]
    pub(super) nodes: u16,
    /// Solvers on each node (more than one: Hogwild on its buffer), or a number for each node:
    /// 0,1,1 (a node without solvers only masters its part of the weights)
    #[arg(long, group = STREAM_GROUP, value_name = "N|N,N...", default_value = "1")]
    pub(super) solvers: Solvers,
    /// Devices of each node that train too: numbers of GPUs (0,1), or host, a device of threads.
    /// With --sync poseidon those of each worker, which compute in place of its threads
    #[arg(long, value_name = "N,N...|host")]
    pub(super) gpu: Option<Devices>,
    /// One more node, which only tests: no solver stops for a test
    #[arg(long, group = STREAM_GROUP)]
    pub(super) tester: bool,
    /// Model: built-in (lenet, lenet_no_momentum, cifar10_quick) or a Caffe solver file [default:
    /// lenet]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) solver: Option<String>,
    /// Pictures: digits (generated), mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE")]
    #[serde(skip)]
    pub(super) data: Option<Source>,
    /// Iterations of all solvers together [default: the solver file's max_iter; 3000 without one]
    #[arg(long, value_name = "N")]
    pub(super) iterations: Option<u64>,
    /// Stop when a test reaches this share of right answers
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", value_parser = args::share_f32)]
    pub(super) target_accuracy: Option<f32>,
    /// Iterations of the cluster between tests; 0: none [default: the solver file's test_interval,
    /// and 20 tests at least]
    #[arg(long, value_name = "N")]
    pub(super) test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all [default: 2000; all with --tester]
    #[arg(long, value_name = "N")]
    pub(super) test_images: Option<usize>,
    /// Make at most so many steps a second and solver, or a number for each node: a machine then
    /// has room for many nodes, each with a pace of its own
    #[arg(long, group = STREAM_GROUP, allow_hyphen_values = true, value_name = "R|R,R...")]
    pub(super) pace_steps: Option<Paces>,
    /// A node stands still (SIGSTOP): from so many seconds of training on, for so many. Repeatable
    #[arg(long, group = STREAM_GROUP, allow_hyphen_values = true, value_name = "NODE:FROM:SECONDS")]
    pub(super) pause: Vec<Pause>,
    /// Solvers wait rather than compute from what is known of another node's range if that is older
    /// than so many local steps
    #[arg(long, group = STREAM_GROUP, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    max_age: Option<u64>,
    /// Seed of weights, pictures and their order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Start from these weights instead of random ones
    #[arg(long, value_name = "FILE.safetensors")]
    pub(super) weights: Option<PathBuf>,
    /// Iterations of the cluster between snapshots, or a time (30s, 10min); 0: none while training
    /// [default: the solver file's snapshot, and one a minute]
    #[arg(long, group = STREAM_GROUP, allow_hyphen_values = true, value_name = "N|TIME")]
    snapshot_every: Option<SnapshotEvery>,
    /// Go on from the last snapshot (--sync poseidon: checkpoint) of the run in --out [without
    /// --out: in the last of out/001, out/002, ...]
    #[arg(long, conflicts_with = "weights")]
    pub(super) resume: bool,
    /// Folder for summary.json, curve.csv, curve.svg, weights.safetensors and logs [default: a new
    /// one, out/001, out/002, ...]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Replace results that are in --out, once those of this run are complete
    #[arg(long, requires = "out", conflicts_with = "resume")]
    pub(super) overwrite: bool,
    /// Write event files for TensorBoard to this folder, in a folder for each node
    #[arg(long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Serve counters to Prometheus there while it runs, as 127.0.0.1:9400; port 0: any free one
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) metrics: Option<String>,
    /// Write these arguments as a job file, which `dogwild launch` runs
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    save_job: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) lab: LabArgs,
    /// What keeps the replicas in step
    #[arg(long, value_enum, default_value = "stream")]
    #[serde(serialize_with = "args::as_value")]
    pub(super) sync: Sync,
    #[command(flatten)]
    pub(super) poseidon: PoseidonArgs,
    #[command(flatten)]
    pub(super) transport: TransportArgs,
    #[command(flatten)]
    pub(super) stream: StreamArgs,
    #[command(flatten)]
    #[serde(rename = "faults")]
    fault: FaultArgs,
}

impl Explicit<Args> {
    pub(super) fn run(mut self) -> Result<()> {
        let stop = stop_on_signals()?;
        self.args.sync.check(&self)?;
        self.args.stream.quorum = self.quorum()?;
        if let Some(file) = &self.args.save_job {
            job_file::save(file, &self)?;
        }
        let chosen = self.has("transport");
        self.args.run(chosen, &stop)
    }

    /// Runs one node of the job, whose others run elsewhere.
    pub(super) fn run_node(mut self, here: Here, out: OutFolder, stop: &Stop) -> Result<()> {
        self.args.stream.quorum = self.quorum()?;
        match self.args.sync {
            Sync::Stream => self.args.run_stream(Some(here), |_| Ok(out), stop),
            Sync::Poseidon => self.args.run_poseidon(Some(here), |_| Ok(out), stop),
        }
    }
}

impl Args {
    /// Runs the job; the user has `chosen` the transport, or it is the default.
    fn run(mut self, chosen: bool, stop: &Stop) -> Result<()> {
        if self.sync == Sync::Poseidon {
            return self.run_poseidon(None, Self::folder, stop);
        }
        if self.lab.lab {
            self.enter_lab(chosen);
        }
        self.run_stream(None, Self::folder, stop)
    }

    /// Runs the job on the stream, or the one node of it that is `here`, with its results in `out`.
    fn run_stream(
        mut self,
        here: Option<Here>,
        out: impl FnOnce(&Self) -> Result<OutFolder>,
        stop: &Stop,
    ) -> Result<()> {
        let (model, spec) = self.choose_model()?;
        if let Some(wrong) = self.stream_problems().into_iter().next() {
            return Err(wrong);
        }
        if self.tester {
            self.add_tester();
        }
        let resume = self.resume.then(|| self.find_run()).transpose()?;
        let asked = self.iterations;
        let asked = asked.or(resume.as_ref().map(Resume::iterations_asked));
        let iterations = asked.unwrap_or(match self.solver {
            Some(_) => spec.max_iter,
            None => DEFAULT_ITERATIONS,
        });
        if self.stream.is_auto() {
            self.choose_precision(&spec)?;
        }
        let out = out(&self)?;
        if let Some(base) = &self.transport.capture {
            // The folder of the results is there: the file may be in it.
            capture::check(base, self.nodes)?;
        }
        let own = self.stream_plan(resume, here)?;
        let plan = self.plan(spec, model, iterations, &out, PathPlan::Stream(own.into()));
        finish(&plan, out, stop)
    }

    /// The model as it was named.
    pub(super) fn model(&self) -> &str {
        self.solver.as_deref().unwrap_or("lenet")
    }

    /// One more node, which masters nothing.
    fn add_tester(&mut self) {
        self.stream.masters.get_or_insert(self.nodes);
        self.solvers = self.solvers.and_none(self.nodes);
        self.nodes += 1;
    }

    /// The run to go on with.
    fn find_run(&mut self) -> Result<Resume> {
        let out = self.out.take();
        let out = out.unwrap_or_else(|| last_run(DEFAULT_OUT.as_ref()));
        let run = Resume::find(&out)?;
        self.out = Some(out);
        Ok(run)
    }

    /// The folder for the results: the one that was named, or a new one.
    fn folder(&self) -> Result<OutFolder> {
        let old = match (self.resume, self.overwrite) {
            (true, _) => Old::Resume,
            (_, true) => Old::Replace,
            _ => Old::Refuse,
        };
        Ok(match &self.out {
            Some(dir) => OutFolder::at(dir, old)?,
            None if self.resume => {
                bail!("--resume: name the folder of the run that is to go on (--out DIR)")
            }
            None => OutFolder::numbered(DEFAULT_OUT.as_ref())?,
        })
    }

    /// Iterations between tests: as asked for, else as the solver file says, but often enough for a
    /// curve.
    fn test_interval(&self, spec: &SolverSpec, iterations: u64) -> u64 {
        let often = match iterations / CURVE_TESTS {
            0 => spec.test_interval,
            interval => spec.test_interval.min(interval),
        };
        self.test_every.unwrap_or(often)
    }

    /// What is run: each argument of this path with its value.
    fn experiment(&self, model: &str, iterations: u64, test_every: u64) -> Experiment {
        let mut settings = match json(self) {
            Value::Object(settings) => settings,
            other => Map::from_iter([("arguments".to_owned(), other)]),
        };
        let foreign: &[&str] = match self.sync {
            Sync::Stream => &["poseidon"],
            Sync::Poseidon => &[
                "nodes",
                "solvers",
                "tester",
                "transport",
                "stream",
                "faults",
            ],
        };
        settings.retain(|name, _| !foreign.contains(&name.as_str()));
        settings.insert("key_file".into(), json(&self.transport.key_file));
        // What was not given, as it was taken.
        settings.insert("solver".into(), model.into());
        settings.insert(
            "data".into(),
            self.data.as_ref().map(Source::to_string).into(),
        );
        settings.insert("iterations".into(), iterations.into());
        settings.insert("test_every".into(), test_every.into());
        let every_picture = if self.tester { 0 } else { TEST_IMAGES };
        let test_images = self.test_images.unwrap_or(every_picture);
        settings.insert("test_images".into(), test_images.into());
        Experiment::new(settings)
    }

    /// In a lab the hosts have one interface, and raw Ethernet is what it is for.
    fn enter_lab(&mut self, chosen: bool) {
        if !chosen {
            self.transport.transport = Transport::PacketMmap;
        }
        self.transport.iface.get_or_insert_with(|| "eth0".into());
    }

    fn stream_plan(&self, resume: Option<Resume>, here: Option<Here>) -> Result<StreamPlan> {
        let mtu = self.transport.mtu.unwrap_or(1500);
        Ok(StreamPlan {
            nodes: self.nodes,
            solvers: self.solvers.clone(),
            devices: self.gpu.clone().unwrap_or_default(),
            tester: self.tester,
            pace_steps: self.pace_steps.clone(),
            pauses: self.pause.clone(),
            max_age: self.max_age,
            snapshot_every: self.snapshot_every,
            resume,
            here,
            lab: self.lab.spec(self.nodes.into(), mtu),
            transport: self.transport.settings(),
            stream: self.stream.settings()?,
            faults: self.fault.settings(),
        })
    }

    /// The job, with what its path has of its own.
    pub(super) fn plan(
        self,
        spec: SolverSpec,
        model: String,
        iterations: u64,
        out: &OutFolder,
        path: PathPlan,
    ) -> JobPlan {
        let test_every = self.test_interval(&spec, iterations);
        JobPlan {
            experiment: self.experiment(&model, iterations, test_every),
            spec,
            model,
            data: self.data.unwrap_or_default(),
            iterations,
            target_accuracy: self.target_accuracy,
            test_every: Some(test_every),
            test_images: self.test_images,
            seed: self.seed,
            weights: self.weights,
            tensorboard: self.tensorboard,
            metrics: self.metrics,
            out: out.work().to_owned(),
            path,
        }
    }
}

/// Runs the job, and says how it ended.
pub(super) fn finish(plan: &JobPlan, out: OutFolder, stop: &Stop) -> Result<()> {
    let ended = run(plan, out, stop)?;
    report(&ended);
    Ok(ended.check()?)
}

fn report(ended: &Ended) {
    let summary = &ended.summary;
    dogwild_lab::say!("{}", summary.path.table());
    let mut done = format!("{} iterations", summary.iterations);
    if let PathSummary::Poseidon(own) = &summary.path {
        train_poseidon::report(own);
        done += &format!(" of {} workers", own.workers);
    }
    close(
        ended,
        &Closing {
            done,
            train_s: summary.train_s,
            nodes: summary.path.nodes(),
            identical: summary.replicas_identical,
            outcome: ended.outcome,
            common: &summary.common,
            tested: summary.path.tested(),
        },
    );
}
