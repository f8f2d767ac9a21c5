//! Arguments that the programs of the reliable path share.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

use super::args;
use super::pictures::pictures;
use crate::poseidon::{
    CaffeModel, ClusterKey, ModelFile, ModelJob, Overlap, PAIR_BYTES, Partition, Policy, Reads,
    Recording, Scheme,
};
use crate::settings::{
    CHECKPOINT_EVERY, ClusterSettings, Compute, MemberSettings, ModelSettings, SlowSettings,
    StragglerChoice,
};
use crate::solver::data::Source;

/// Arguments that must be the same for all members of a cluster.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model (the same for all members)")]
pub struct ModelArgs {
    /// Model: built-in (lenet, lenet_no_momentum, cifar10_quick) or a Caffe solver file
    #[arg(long, value_name = "NAME|FILE", default_value = "lenet")]
    pub solver: String,
    /// Pictures: digits, mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<Source>,
    /// Seed of the first weights and of the order of pictures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Start from these weights instead of random ones
    #[arg(long, value_name = "FILE.safetensors")]
    pub weights: Option<PathBuf>,
    /// Threads of each worker that add up their gradients before they are sent
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads())]
    pub threads_per_worker: usize,
    /// What workers do: solver; client:FILE, where programs with a client compute the gradients of
    /// the model in FILE; replay:FILE to spend recorded times (dogwild-plan writes such a file)
    /// while gradients of the recorded sizes travel
    #[arg(long, value_name = "WHAT", default_value = "solver")]
    pub compute: Compute,
}

impl FromStr for Compute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "solver" => Ok(Self::Solver),
            Some(("replay", file)) if !file.is_empty() => Ok(Self::Replay(file.into())),
            Some(("client", file)) if !file.is_empty() => Ok(Self::Client(file.into())),
            _ => Err(format!(
                "`{text}` is not known: give solver, client:FILE or replay:FILE"
            )),
        }
    }
}

/// Arguments of the coordinator, which decides for all members how the cluster works.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Reliable path (--sync poseidon)")]
pub struct ClusterArgs {
    /// Workers of the cluster
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,
    /// Servers, each with a share of the KV pairs; 0: workers hold all, by p2p where else by ps
    /// [default: 1, with --scheme p2p 0]
    #[arg(long, value_name = "N")]
    pub servers: Option<u16>,
    /// Rule that chooses how layers travel (hybcomm, sacp, cheapest), or one way for all (ps, sfb,
    /// adam, onebit, p2p; onebit-all: convolutions too)
    #[arg(long, value_name = "SCHEME", default_value = "hybcomm")]
    pub scheme: Policy,
    /// How tensors are dealt to servers
    #[arg(long, value_enum, default_value = "pairs")]
    pub partition: PartitionArg,
    /// Bytes of a KV pair, at most
    #[arg(long, value_name = "BYTES", default_value_t = PAIR_BYTES)]
    pub pair_bytes: u64,
    /// Steps of others that a worker may miss when it begins an iteration
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub staleness: u32,
    /// What a worker reads in place of those: steps that it makes of its own gradients, or whole
    /// steps alone
    #[arg(long, value_enum, default_value = "own")]
    pub reads: ReadsArg,
    /// Whether a step waits for all workers, or goes on without the last
    #[arg(long, value_enum, default_value = "wait")]
    pub stragglers: StragglersArg,
    /// Share of the workers that make a step with --stragglers drop. With --sync stream: solvers of
    /// a node wait while it hears fewer nodes, itself included [default there: they go on alone]
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE|NODES", default_value = "75%", value_parser = args::share_or_count)]
    pub quorum: f64,
    /// Iterations between checkpoints, of which the end has one too; 0: none
    #[arg(long, value_name = "N", default_value_t = CHECKPOINT_EVERY)]
    pub checkpoint_every: u64,
}

/// See [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartitionArg {
    /// In pairs of --pair-bytes, spread evenly
    Pairs,
    /// Each tensor whole on one server
    Tensor,
}

/// See [`Reads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReadsArg {
    /// Whole steps, and for each that is missing one of its own gradient
    Own,
    /// Whole steps alone: delayed bulk-synchronous
    Delayed,
}

/// See [`Stragglers`](crate::poseidon::Stragglers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StragglersArg {
    /// All wait for the slowest
    Wait,
    /// Updates that come after the quorum are dropped and counted
    Drop,
}

/// See [`Overlap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverlapArg {
    /// A layer is sent as soon as its backward pass is done
    Wfbp,
    /// Layers are sent after the whole pass
    None,
}

/// How connections are secured.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// Authenticate and encrypt all connections with the key in this file (openssl rand -hex 32),
    /// which only its owner may read; the same for all members
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// Arguments of servers and workers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct MemberArgs {
    /// Which of its kind, from 0
    #[arg(long, value_name = "K")]
    pub index: u16,
    /// Where the coordinator listens
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: String,
    /// Where to listen for others; port 0: any
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:0")]
    pub listen: SocketAddr,
    /// Folder for checkpoints
    #[arg(long, value_name = "DIR")]
    pub checkpoints: Option<PathBuf>,
    /// Go on from the newest checkpoint that all members have
    #[arg(long, requires = "checkpoints")]
    pub resume: bool,
    /// Bytes per second to send at most, as 10MB; what matters most goes first
    #[arg(long, allow_hyphen_values = true, value_name = "BYTES", value_parser = args::bytes)]
    pub bandwidth: Option<f64>,
    /// How connections are secured
    #[command(flatten)]
    pub key: KeyArgs,
    /// Write what was sent and received for each layer to this file, at the end
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,
}

impl FromStr for SlowSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once(':')
            .and_then(|(worker, factor)| Some((worker.parse().ok()?, factor.parse().ok()?)));
        match parts {
            Some((worker, factor)) if (1.0..=1e6).contains(&factor) => Ok(Self { worker, factor }),
            _ => Err(format!(
                "`{text}` is not WORKER:FACTOR, as 1:10, with a factor of 1 or more"
            )),
        }
    }
}

impl ModelArgs {
    /// The settings that they make.
    pub fn settings(self) -> ModelSettings {
        ModelSettings {
            solver: self.solver,
            data: self.data,
            seed: self.seed,
            weights: self.weights,
            threads_per_worker: self.threads_per_worker,
            compute: self.compute,
        }
    }
}

/// Reads the model of `settings`. The pictures are those that are named, else the model's own, if
/// it has some.
///
/// # Errors
/// The model, the pictures or the recording: what is wrong with it.
pub(super) fn model_job(settings: &ModelSettings) -> Result<(ModelJob, Source)> {
    if let Compute::Client(path) = &settings.compute {
        let mut job = ModelJob::of_file(model_file(path)?)?;
        job.weights = settings.weights.clone();
        return Ok((job, Source::default()));
    }
    let spec = args::model(&settings.solver)?;
    let data = settings.data.clone();
    let (data, replay) = match &settings.compute {
        // A recording reads no pictures.
        Compute::Replay(path) => (data.unwrap_or_default(), Some(recording(path)?)),
        Compute::Solver | Compute::Client(_) => (pictures(data, &settings.solver, &spec)?, None),
    };
    let (input, classes) = data.shape();
    let mut job = ModelJob::of_caffe(CaffeModel {
        spec,
        input,
        classes,
        seed: settings.seed,
        threads: settings.threads_per_worker,
        replay,
    });
    job.weights = settings.weights.clone();
    Ok((job, data))
}

fn recording(path: &Path) -> Result<Recording> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the recording {shown}"))?;
    Recording::parse(&text).with_context(|| shown.to_string())
}

fn model_file(path: &Path) -> Result<ModelFile> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the model file {shown}"))?;
    ModelFile::parse(&text).with_context(|| shown.to_string())
}

/// Reads the key file, if one is given.
pub(super) fn key(file: Option<&Path>) -> Result<Option<ClusterKey>> {
    Ok(file.map(ClusterKey::read).transpose()?)
}

impl Serialize for ClusterArgs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.settings().serialize(to)
    }
}

impl ClusterArgs {
    /// The settings that they make.
    pub fn settings(&self) -> ClusterSettings {
        ClusterSettings {
            workers: self.workers,
            servers: self.servers(),
            scheme: self.scheme,
            partition: match self.partition {
                PartitionArg::Pairs => Partition::Pairs,
                PartitionArg::Tensor => Partition::Tensor,
            },
            pair_bytes: self.pair_bytes,
            staleness: self.staleness,
            reads: match self.reads {
                ReadsArg::Own => Reads::Own,
                ReadsArg::Delayed => Reads::Delayed,
            },
            stragglers: match self.stragglers {
                StragglersArg::Wait => StragglerChoice::Wait,
                StragglersArg::Drop => StragglerChoice::Drop,
            },
            quorum: self.quorum,
            checkpoint_every: self.checkpoint_every,
        }
    }

    /// How many servers there are.
    pub fn servers(&self) -> u16 {
        let at_workers = self.scheme == Policy::Force(Scheme::P2p);
        self.servers.unwrap_or(if at_workers { 0 } else { 1 })
    }

    /// The same as command-line arguments, for the summary.
    pub fn to_args(&self) -> Vec<String> {
        [
            ("--workers", self.workers.to_string()),
            ("--servers", self.servers().to_string()),
            ("--scheme", self.scheme.to_string()),
            ("--partition", name(&self.partition)),
            ("--pair-bytes", self.pair_bytes.to_string()),
            ("--staleness", self.staleness.to_string()),
            ("--reads", name(&self.reads)),
            ("--stragglers", name(&self.stragglers)),
            ("--quorum", self.quorum.to_string()),
            ("--checkpoint-every", self.checkpoint_every.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

impl OverlapArg {
    /// See [`Overlap`].
    pub fn overlap(self) -> Overlap {
        match self {
            Self::Wfbp => Overlap::Wfbp,
            Self::None => Overlap::None,
        }
    }
}

impl MemberArgs {
    /// The settings that they make.
    pub fn settings(self) -> MemberSettings {
        MemberSettings {
            index: self.index,
            coordinator: self.coordinator,
            listen: self.listen,
            checkpoints: self.checkpoints,
            resume: self.resume,
            report: self.report,
            bandwidth_bytes_per_s: self.bandwidth,
            key_file: self.key.key_file,
        }
    }
}

/// Parser of a number of threads: 1 or more.
pub(super) fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// The name of a value on the command line.
pub fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_worker_is_an_index_and_a_factor() {
        let slow = SlowSettings {
            worker: 1,
            factor: 10.0,
        };
        assert_eq!("1:10".parse(), Ok(slow));
        for wrong in ["", "1", "1:0.5", "1:NaN", "-1:2", "one:2", "1:inf"] {
            let said = wrong.parse::<SlowSettings>().expect_err(wrong);
            assert!(said.contains("WORKER:FACTOR"), "{said}");
        }
    }

    #[test]
    fn unknown_work_is_refused() {
        assert_eq!("solver".parse(), Ok(Compute::Solver));
        let replay = Compute::Replay("a:b.json".into());
        assert_eq!("replay:a:b.json".parse(), Ok(replay));
        for wrong in ["", "replay", "replay:", "sleep:1"] {
            assert!(wrong.parse::<Compute>().is_err(), "{wrong}");
        }
    }
}
