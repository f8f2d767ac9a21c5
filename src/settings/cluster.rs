//! Settings that several components of the reliable path share.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::{optional_source, text};
use super::error::SettingsError;
use super::limits::{lenet, one};
use super::link;
use crate::poseidon::{
    ClusterKey, ClusterSpec, MemberJob, Overlap, PAIR_BYTES, Partition, Policy, Reads, Stragglers,
};
use crate::solver::data::Source;

/// Iterations between checkpoints, unless another number is given.
pub const CHECKPOINT_EVERY: u64 = 500;

/// The model and what is done with it; the same for all members of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// A built-in model or a Caffe solver file.
    pub solver: String,
    /// Pictures; none: digits where the model is for them.
    #[serde(with = "optional_source")]
    pub data: Option<Source>,
    /// Seed of the first weights and of the order of pictures.
    pub seed: u64,
    /// Weights to start from; none: random ones.
    pub weights: Option<PathBuf>,
    /// Threads of each worker that add up their gradients before they are sent, 1 or more.
    pub threads_per_worker: usize,
    /// What workers do.
    pub compute: Compute,
}

/// The work of the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compute {
    /// They train.
    #[default]
    Solver,
    /// They are programs with a client, which compute the gradients of the model in this file.
    Client(PathBuf),
    /// They spend the times of this recording while gradients of the recorded sizes travel.
    Replay(PathBuf),
}

/// How the cluster works: the coordinator decides it for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// Workers, 1 or more.
    pub workers: u16,
    /// Servers, 1 or more, each with a share of the KV pairs.
    pub servers: u16,
    /// Rule that chooses how layers travel (`hybcomm`, `sacp`, `cheapest`), or one way for all
    /// (`ps`, `sfb`, `adam`, `onebit`, `onebit-all`, `p2p`).
    #[serde(with = "text")]
    pub scheme: Policy,
    /// How tensors are dealt to servers: `pairs` or `tensor`.
    pub partition: Partition,
    /// Bytes of a KV pair, at most.
    pub pair_bytes: u64,
    /// Steps of others that a worker may miss when it begins an iteration.
    pub staleness: u32,
    /// What a worker reads in place of those: steps of its `own`, or whole steps alone (`delayed`).
    pub reads: Reads,
    /// Whether a step waits for all workers.
    pub stragglers: StragglerChoice,
    /// Share of the workers that make a step where stragglers are dropped, 0 to 1.
    pub quorum: f64,
    /// Iterations between checkpoints; 0: none.
    pub checkpoint_every: u64,
}

/// What happens when workers are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StragglerChoice {
    /// All wait for the slowest.
    Wait,
    /// Updates that come after the quorum are dropped and counted.
    Drop,
}

/// A server's or a worker's place in the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSettings {
    /// Which of its kind, from 0.
    pub index: u16,
    /// Where the coordinator listens, HOST:PORT.
    pub coordinator: String,
    /// Where to listen for others; port 0: any.
    #[serde(default = "anywhere")]
    pub listen: SocketAddr,
    /// Folder for checkpoints; none: no checkpoints.
    #[serde(default)]
    pub checkpoints: Option<PathBuf>,
    /// Go on from the newest checkpoint that all members have.
    #[serde(default)]
    pub resume: bool,
    /// Bytes per second to send at most; none: no limit.
    #[serde(default)]
    pub bandwidth_bytes_per_s: Option<f64>,
    /// File with the key that secures connections; the key itself is in no settings.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// File for what was sent and received for each layer, written at the end.
    #[serde(default)]
    pub report: Option<PathBuf>,
}

/// A worker that is made slow on purpose: it rests after each pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowSettings {
    /// Index of the worker.
    pub worker: u16,
    /// How many times longer its passes take, 1 or more.
    pub factor: f64,
}

/// When layers are sent.
pub(super) fn wfbp() -> Overlap {
    Overlap::Wfbp
}

fn anywhere() -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 0).into()
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            solver: lenet(),
            data: None,
            seed: one(),
            weights: None,
            threads_per_worker: 1,
            compute: Compute::Solver,
        }
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            workers: 2,
            servers: 1,
            scheme: Policy::HybComm,
            partition: Partition::Pairs,
            pair_bytes: PAIR_BYTES,
            staleness: 0,
            reads: Reads::Own,
            stragglers: StragglerChoice::Wait,
            quorum: 0.75,
            checkpoint_every: CHECKPOINT_EVERY,
        }
    }
}

impl ModelSettings {
    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        if self.threads_per_worker == 0 {
            let what = "0: give 1 thread or more";
            return Err(SettingsError::new("model.threads_per_worker", what));
        }
        if matches!(self.compute, Compute::Client(_)) {
            return self.validate_without_solver();
        }
        Ok(())
    }

    /// Refuses what only a solver would read.
    fn validate_without_solver(&self) -> Result<(), SettingsError> {
        if self.threads_per_worker > 1 {
            let what = format!(
                "{}: workers with a client add up their gradients themselves, leave it out",
                self.threads_per_worker
            );
            return Err(SettingsError::new("model.threads_per_worker", what));
        }
        if let Some(data) = &self.data {
            let what =
                format!("{data}: workers with a client read their data themselves, leave it out");
            return Err(SettingsError::new("model.data", what));
        }
        Ok(())
    }
}

impl ClusterSettings {
    /// What the coordinator makes the plan from, for `clocks` iterations.
    pub fn spec(&self, clocks: u64) -> ClusterSpec {
        ClusterSpec {
            workers: self.workers,
            servers: self.servers,
            // These two follow from the model.
            images: 0,
            recipe: String::new(),
            policy: self.scheme,
            pair_bytes: self.pair_bytes,
            partition: self.partition,
            staleness: self.staleness,
            reads: self.reads,
            stragglers: match self.stragglers {
                StragglerChoice::Wait => Stragglers::Wait,
                StragglerChoice::Drop => Stragglers::Drop(self.quorum),
            },
            clocks,
            checkpoint_every: self.checkpoint_every,
        }
    }

    /// What depends on the model (pairs, schemes) is checked with the plan.
    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        if self.workers == 0 {
            return Err(SettingsError::new("cluster.workers", "0: give 1 or more"));
        }
        link::share("cluster.quorum", self.quorum)
    }
}

impl MemberSettings {
    /// What the member runs, with the key of `key_file`.
    pub(super) fn job(&self, key: Option<ClusterKey>) -> MemberJob {
        MemberJob {
            index: self.index,
            coordinator: self.coordinator.clone(),
            listen: self.listen,
            checkpoints: self.checkpoints.clone(),
            resume: self.resume,
            report: self.report.clone(),
            bandwidth_bytes_per_s: self.bandwidth_bytes_per_s,
            key,
        }
    }

    pub(super) fn validate(&self) -> Result<(), SettingsError> {
        bandwidth("member.bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)?;
        if self.resume && self.checkpoints.is_none() {
            let what = "true: name the folder of the checkpoints too (`checkpoints`)";
            return Err(SettingsError::new("member.resume", what));
        }
        Ok(())
    }
}

/// Refuses a bandwidth of 0.
///
/// # Errors
/// It is 0, or none.
pub fn bandwidth(field: &'static str, bytes_per_s: Option<f64>) -> Result<(), SettingsError> {
    match bytes_per_s {
        Some(bytes) if bytes.is_nan() || bytes <= 0.0 => {
            let what = format!(
                "{bytes}: nothing could ever be sent; give bytes per second, as 10MB (10e6), or leave it out"
            );
            Err(SettingsError::new(field, what))
        }
        _ => Ok(()),
    }
}
