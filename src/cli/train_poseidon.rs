//! `dogwild train --sync poseidon`: its arguments in addition to those of every job.

use anyhow::{Result, bail, ensure};
use clap::{ArgGroup, Command, ValueEnum};
use serde::Serialize;

use super::args;
use super::cluster_args::{ClusterArgs, OverlapArg, key, name, threads};
use super::explicit::Explicit;
use super::given::by_flag;
use super::poseidon_flags::with_flags;
use super::train::{Args, DEFAULT_ITERATIONS, finish};
use crate::job::{Here, JobPlan, OutFolder, PathPlan, PoseidonPlan, PoseidonSummary};
use crate::node::Stop;
use crate::poseidon::{CaffeModel, ModelJob};
use crate::settings::{SlowSettings, bandwidth};
use crate::solver::SolverSpec;

/// The path that keeps the replicas in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sync {
    /// Streamers, without ever waiting
    Stream,
    /// Servers and peers, step by step
    Poseidon,
}

/// Groups of arguments of the stream only.
const STREAM_ONLY: [&str; 4] = [STREAM_GROUP, "TransportArgs", "StreamArgs", "FaultArgs"];
/// Groups of arguments of the reliable path only.
const POSEIDON_ONLY: [&str; 2] = [POSEIDON_GROUP, "ClusterArgs"];
/// The group of the arguments in [`Args`] itself that the stream only has.
pub(super) const STREAM_GROUP: &str = "stream-path";
/// The group of the arguments in [`PoseidonArgs`] itself. (Of a struct that has others flattened
/// into it, clap makes an empty group.)
pub(super) const POSEIDON_GROUP: &str = "poseidon-path";
/// Though in a group of the stream, the reliable path has it too.
const BOTH: &str = "--key-file";
const KEY_FILE: &str = "key_file";
/// In a group of the reliable path; on the stream it is a number of nodes.
const QUORUM: &str = "--quorum";

/// Arguments of the reliable path.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(group = ArgGroup::new(POSEIDON_GROUP).multiple(true))]
pub(super) struct PoseidonArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) cluster: ClusterArgs,
    /// When layers are sent
    #[arg(long, group = POSEIDON_GROUP, value_enum, default_value = "wfbp")]
    #[serde(serialize_with = "args::as_value")]
    overlap: OverlapArg,
    /// Threads of each worker that add up their gradients before they are sent
    #[arg(long, group = POSEIDON_GROUP, value_name = "N", default_value_t = 1, value_parser = threads())]
    threads_per_worker: usize,
    /// Bytes per second that each worker and each server sends at most, as 10MB; what matters most
    /// goes first
    #[arg(long, group = POSEIDON_GROUP, allow_hyphen_values = true, value_name = "BYTES", value_parser = args::bytes)]
    #[serde(rename = "bandwidth_bytes_per_s")]
    bandwidth: Option<f64>,
    /// Makes a worker slow on purpose, as 1:10 (worker 1, ten times): it rests after each pass
    #[arg(long, group = POSEIDON_GROUP, value_name = "WORKER:FACTOR")]
    slow: Option<SlowSettings>,
}

impl Sync {
    /// Whether arguments of `command` belong to the other path.
    pub(super) fn is_foreign(self, command: &Command, id: &str) -> bool {
        let foreign: &[&str] = match self {
            Self::Stream => &POSEIDON_ONLY,
            Self::Poseidon => &STREAM_ONLY,
        };
        let mut groups = command.get_groups();
        let has = |group: &ArgGroup| group.get_args().any(|arg| arg == id);
        id != KEY_FILE
            && groups.any(|group| foreign.contains(&group.get_id().as_str()) && has(group))
    }

    /// Refuses arguments of the other path.
    pub(super) fn check(self, given: &Explicit<Args>) -> Result<()> {
        let (foreign, own, other): (&[&str], _, _) = match self {
            Self::Stream => (&POSEIDON_ONLY, "stream", "poseidon"),
            Self::Poseidon => (&STREAM_ONLY, "poseidon", "stream"),
        };
        let mut flags = foreign.iter().flat_map(|group| given.flags_of(group));
        match flags.find(|flag| flag != BOTH && (self == Self::Poseidon || flag != QUORUM)) {
            Some(flag) => {
                bail!("{flag} means nothing with --sync {own}; it belongs to --sync {other}")
            }
            None => Ok(()),
        }
    }
}

impl Explicit<Args> {
    /// The nodes that must be heard for solvers to go on, on the stream.
    pub(super) fn quorum(&self) -> Result<Option<u16>> {
        if self.args.sync != Sync::Stream || !self.has("quorum") {
            return Ok(None);
        }
        let (given, nodes) = (self.args.poseidon.cluster.quorum, self.args.nodes);
        ensure!(
            given.fract() == 0.0 && (1.0..=f64::from(nodes)).contains(&given),
            "{QUORUM} {given} of {nodes} nodes: give 1 to {nodes}"
        );
        Ok(Some(given as u16))
    }
}

impl Args {
    /// Refuses before the job begins what each process of the cluster would refuse by itself.
    pub(super) fn check_cluster(&self, spec: &SolverSpec) -> Result<()> {
        let own = &self.poseidon;
        let (input, classes) = self.data.clone().unwrap_or_default().shape();
        let model = ModelJob::of_caffe(CaffeModel {
            spec: spec.clone(),
            input,
            classes,
            seed: self.seed,
            threads: self.threads()?,
            replay: None,
        });
        // The number of iterations makes no difference to the check.
        model
            .check(&own.cluster.settings().spec(1))
            .map_err(with_flags)
    }

    /// Threads of each worker: as many as it has devices.
    fn threads(&self) -> Result<usize> {
        let given = self.poseidon.threads_per_worker;
        let Some(devices) = &self.gpu else {
            return Ok(given);
        };
        ensure!(
            given == 1,
            "--threads-per-worker {given}: a worker has one thread for each device of --gpu; leave one of the two away"
        );
        Ok(devices.0.len())
    }

    /// Runs the job on the reliable path, or the one node of it that is `here`, with its results in
    /// `out`.
    pub(super) fn run_poseidon(
        mut self,
        here: Option<Here>,
        out: impl FnOnce(&Self) -> Result<OutFolder>,
        stop: &Stop,
    ) -> Result<()> {
        let (model, spec) = self.choose_model()?;
        self.check_cluster(&spec)?;
        let out = out(&self)?;
        let plan = self.poseidon_plan(spec, model, &out, here)?;
        finish(&plan, out, stop)
    }

    /// The job as the reliable path runs it.
    fn poseidon_plan(
        self,
        spec: SolverSpec,
        model: String,
        out: &OutFolder,
        here: Option<Here>,
    ) -> Result<JobPlan> {
        let own = self.poseidon.clone();
        // All workers together see as many pictures as a job of one worker would.
        let iterations = self.iterations.unwrap_or(match self.solver {
            Some(_) => spec.max_iter,
            None => DEFAULT_ITERATIONS.div_ceil(u64::from(own.cluster.workers.max(1))),
        });
        let mut worker_args = vec!["--overlap".to_owned(), name(&own.overlap)];
        if let Some(SlowSettings { worker, factor }) = own.slow {
            ensure!(
                worker < own.cluster.workers,
                "--slow {worker}:{factor}: there is no worker {worker}; the {} workers are counted from 0",
                own.cluster.workers
            );
            worker_args.extend(["--slow".into(), format!("{worker}:{factor}")]);
        }
        // A wrong key file is refused here rather than by each process.
        let key_file = self.transport.key_file.clone();
        key(key_file.as_deref())?;
        bandwidth("bandwidth_bytes_per_s", own.bandwidth).map_err(|error| by_flag(&error))?;
        let hosts = own.cluster.workers.max(own.cluster.servers());
        if let Some(devices) = &self.gpu {
            worker_args.extend(["--gpu".into(), devices.to_string()]);
        }
        let plan = PoseidonPlan {
            threads: self.threads()?,
            devices: self.gpu.clone(),
            resume: self.resume,
            cluster: own.cluster.settings(),
            overlap: own.overlap.overlap(),
            slow: own.slow,
            bandwidth_bytes_per_s: own.bandwidth,
            key_file,
            cluster_args: own.cluster.to_args(),
            worker_args,
            checkpoint_folder: out.lasting().join("checkpoints"),
            lab: self.lab.spec(usize::from(hosts), 1500),
            here,
        };
        let path = PathPlan::Poseidon(plan.into());
        Ok(self.plan(spec, model, iterations, out, path))
    }
}

/// Prints what the table does not have.
pub(super) fn report(summary: &PoseidonSummary) {
    dogwild_lab::say!(
        "test accuracy {:.2} %, test loss {:.4}, {:.0} images/s",
        summary.test_accuracy * 100.0,
        summary.test_loss,
        summary.images_per_s
    );
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn command() -> Command {
        let mut command = <Explicit<Args> as clap::Args>::augment_args(Command::new("train"));
        command.build();
        command
    }

    /// An argument that is in no group is taken, and ignored, on a path that does not know it.
    #[test]
    fn every_argument_belongs_to_a_path_or_to_both() {
        const COMMON: [&str; 22] = [
            "help",
            "solver",
            "gpu",
            "data",
            "iterations",
            "target_accuracy",
            "test_every",
            "test_images",
            "seed",
            "weights",
            "resume",
            "out",
            "overwrite",
            "tensorboard",
            "metrics",
            "save_job",
            "lab",
            "lab_rate",
            "lab_queue",
            "lab_loss",
            "sync",
            "key_file",
        ];
        let command = command();
        let of_a_path: Vec<String> = command
            .get_groups()
            .filter(|group| {
                let id = group.get_id().as_str();
                STREAM_ONLY.contains(&id) || POSEIDON_ONLY.contains(&id)
            })
            .flat_map(|group| group.get_args().map(|id| id.as_str().to_owned()))
            .collect();
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let common = COMMON.contains(&id);
            let own = of_a_path.iter().any(|arg| arg == id) && id != "key_file";
            assert!(common != own, "{id}: of a path {own}, of both {common}");
        }
    }

    #[test]
    fn only_what_was_given_is_refused() {
        let said = |line: &str| {
            let words = std::iter::once("train").chain(line.split(' '));
            let matches = command().try_get_matches_from(words).expect(line);
            let given: Explicit<Args> = Explicit::from_arg_matches(&matches).expect(line);
            let checked = given.args.sync.check(&given);
            checked.err().map(|error| error.to_string())
        };
        for line in [
            "--seed 1",
            "--sync poseidon --key-file k --workers 2",
            "--nodes=3 --loss 1%",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
        for (line, flag) in [
            ("--sync poseidon --nodes=2", "--nodes"),
            ("--sync poseidon --no-segmentation", "--no-segmentation"),
            ("--sync=poseidon --loss 0", "--loss"),
            ("--sync poseidon --key-file k --rate max", "--rate"),
            ("--servers 1", "--servers"),
            ("--overlap=none", "--overlap"),
        ] {
            let said = said(line).expect(line);
            assert!(said.starts_with(&format!("{flag} means nothing")), "{said}");
        }
    }
}
