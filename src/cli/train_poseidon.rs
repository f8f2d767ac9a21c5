//! `dogwild train --sync poseidon`: its arguments in addition to those of every job.

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::args;
use super::closing::{Closing, close};
use super::cluster_args::{ClusterArgs, OverlapArg, key, name, threads};
use super::given::by_flag;
use super::poseidon_flags::with_flags;
use super::train::Args;
use crate::job::{Ended, OutFolder, PoseidonPlan, PoseidonSummary};
use crate::poseidon::ModelJob;
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

/// Arguments of the stream only.
const STREAM_ONLY: [&str; 29] = [
    "--nodes",
    "--solvers",
    "--tester",
    "--masters",
    "--precision",
    "--sparse",
    "--snapshot-every",
    "--lab",
    "--transport",
    "--iface",
    "--mtu",
    "--port",
    "--no-segmentation",
    "--deltas",
    "--merge",
    "--pace-steps",
    "--max-age",
    "--rate",
    "--window",
    "--atomic",
    "--loss",
    "--duplicate",
    "--reorder",
    "--delay",
    "--fault-seed",
    "--loss-burst",
    "--corrupt",
    "--capture",
    "--pace",
];
/// Arguments of the reliable path only.
const POSEIDON_ONLY: [&str; 14] = [
    "--slow",
    "--workers",
    "--servers",
    "--scheme",
    "--partition",
    "--pair-bytes",
    "--staleness",
    "--stragglers",
    "--quorum",
    "--checkpoint-every",
    "--overlap",
    "--threads-per-worker",
    "--bandwidth",
    "--private-data",
];

/// Arguments of the reliable path.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(super) struct PoseidonArgs {
    #[command(flatten)]
    #[serde(flatten)]
    cluster: ClusterArgs,
    /// When layers are sent
    #[arg(long, value_enum, default_value = "wfbp")]
    #[serde(serialize_with = "args::as_value")]
    overlap: OverlapArg,
    /// Threads of each worker that add up their gradients before they are sent
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads())]
    threads_per_worker: usize,
    /// Bytes per second that each worker and each server sends at most, as 10MB; what matters most
    /// goes first
    #[arg(long, allow_hyphen_values = true, value_name = "BYTES", value_parser = args::bytes)]
    #[serde(rename = "bandwidth_bytes_per_s")]
    bandwidth: Option<f64>,
    /// Makes a worker slow on purpose, as 1:10 (worker 1, ten times): it rests after each pass
    #[arg(long, value_name = "WORKER:FACTOR")]
    slow: Option<SlowSettings>,
}

impl Sync {
    /// Refuses arguments of the other path.
    pub(super) fn check(self) -> Result<()> {
        let (foreign, own, other): (&[&str], _, _) = match self {
            Self::Stream => (&POSEIDON_ONLY, "stream", "poseidon"),
            Self::Poseidon => (&STREAM_ONLY, "poseidon", "stream"),
        };
        let given: Vec<String> = std::env::args().collect();
        let is = |arg: &str, name: &str| {
            arg == name
                || arg
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('='))
        };
        match foreign
            .iter()
            .find(|name| given.iter().any(|arg| is(arg, name)))
        {
            Some(name) => {
                bail!("{name} means nothing with --sync {own}; it belongs to --sync {other}")
            }
            None => Ok(()),
        }
    }
}

impl Args {
    /// Refuses before the job begins what each process of the cluster would refuse by itself.
    pub(super) fn check_cluster(&self, spec: &SolverSpec) -> Result<()> {
        let own = &self.poseidon;
        let (input, classes) = self.data.clone().unwrap_or_default().shape();
        let model = ModelJob {
            spec: spec.clone(),
            input,
            classes,
            seed: self.seed,
            weights: None,
            threads: own.threads_per_worker,
            replay: None,
        };
        // The number of iterations makes no difference to the check.
        model
            .check(&own.cluster.settings().spec(1))
            .map_err(with_flags)
    }

    /// The job as the reliable path runs it.
    pub(super) fn poseidon_plan(
        self,
        spec: SolverSpec,
        model: String,
        default_iterations: u64,
        out: &OutFolder,
    ) -> Result<PoseidonPlan> {
        let own = self.poseidon.clone();
        // All workers together see as many pictures as a job of one worker would.
        let iterations = self.iterations.unwrap_or(match self.solver {
            Some(_) => spec.max_iter,
            None => default_iterations.div_ceil(u64::from(own.cluster.workers.max(1))),
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
        let test_every = self.test_interval(&spec, iterations);
        Ok(PoseidonPlan {
            experiment: self.experiment(&model, iterations, test_every),
            threads: own.threads_per_worker,
            resume: self.resume,
            cluster: own.cluster.settings(),
            overlap: own.overlap.overlap(),
            slow: own.slow,
            bandwidth_bytes_per_s: own.bandwidth,
            key_file,
            cluster_args: own.cluster.to_args(),
            worker_args,
            spec,
            model,
            data: self.data.unwrap_or_default(),
            iterations,
            target_accuracy: self.target_accuracy,
            test_every: Some(test_every),
            test_images: self.test_images,
            seed: self.seed,
            weights: self.weights,
            out: out.work().to_owned(),
            checkpoint_folder: out.lasting().join("checkpoints"),
        })
    }
}

/// Prints the results.
pub(super) fn report(ended: &Ended<PoseidonSummary>) {
    let summary = &ended.summary;
    dogwild_lab::say!("{}", summary.table());
    dogwild_lab::say!(
        "test accuracy {:.2} %, test loss {:.4}, {:.0} images/s",
        summary.test_accuracy * 100.0,
        summary.test_loss,
        summary.images_per_s
    );
    close(
        ended,
        &Closing {
            done: format!(
                "{} iterations of {} workers",
                summary.iterations, summary.workers
            ),
            train_s: summary.train_s,
            nodes: summary.workers,
            identical: summary.replicas_identical,
            outcome: ended.outcome,
            common: &summary.common,
            tested: summary.test_images,
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{FaultArgs, TransportArgs};
    use crate::cli::stream_args::StreamArgs;

    #[test]
    fn every_argument_of_one_path_is_refused_on_the_other() {
        fn names<A: clap::Args>() -> Vec<String> {
            let command = A::augment_args(clap::Command::new("x"));
            let longs = command.get_arguments().filter_map(|arg| arg.get_long());
            longs.map(|long| format!("--{long}")).collect()
        }
        let stream = [
            names::<StreamArgs>(),
            names::<TransportArgs>(),
            names::<FaultArgs>(),
        ];
        // Both paths take a key file.
        let stream = stream.concat().into_iter().filter(|n| n != "--key-file");
        for (own, of) in [
            (&STREAM_ONLY[..], stream.collect::<Vec<_>>()),
            (&POSEIDON_ONLY, names::<PoseidonArgs>()),
        ] {
            for name in of {
                assert!(own.contains(&name.as_str()), "{name} is in no list");
            }
        }
    }
}
