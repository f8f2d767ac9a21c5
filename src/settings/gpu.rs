//! Settings of a device in step with a buffer.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Settings;
use super::choices::{optional_shard, optional_source};
use super::error::SettingsError;
use super::limits::{BYTES_MIN, one};
use crate::device::Which;
use crate::node::{
    ADDERS_MAX, Adding, DeviceSolverJob, GpuJob, HOST_RATE_BYTES_PER_S, SyncJob, usual_adders,
};
use crate::solver::SolverSpec;
use crate::solver::data::{Shard, Source};
use crate::stream::MAX_NODES;
use crate::weights::Writes;

/// Weights of a chunk.
pub const CHUNK_WEIGHTS: RangeInclusive<u32> = 16..=1 << 20;

/// Threads that add deltas to the buffer.
pub const ADDERS: RangeInclusive<u32> = 1..=ADDERS_MAX as u32;

/// How fast weights go up to a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpRate {
    /// As fast as it takes them.
    Max,
    /// Bytes per second at most.
    BytesPerS(f64),
}

/// What `dogwild gpu` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSettings {
    /// The node's buffer.
    pub buffer: PathBuf,
    /// The device.
    pub device: Which,
    /// This component's number on this buffer.
    #[serde(default)]
    pub index: u32,
    /// Weights of a chunk; none: the fastest of some that are tried.
    #[serde(default)]
    pub chunk_weights: Option<u32>,
    /// Threads that add deltas to the buffer; none: a quarter of the cores, 1 to 4.
    #[serde(default)]
    pub adders: Option<u32>,
    /// How fast weights go up; none: as fast as a GPU takes them, 500 MB/s to a host device.
    #[serde(default)]
    pub rate: Option<UpRate>,
    /// Local writers add atomically.
    #[serde(default)]
    pub atomic: bool,
    /// Other processes may use the device's weights in place.
    #[serde(default)]
    pub ipc: bool,
    /// The model to train on the device: built-in, or a Caffe solver file; none: no solver.
    #[serde(default)]
    pub solver: Option<String>,
    /// Pictures for the solver; none: digits where the model is for them.
    #[serde(default, with = "optional_source")]
    pub data: Option<Source>,
    /// The device's solver's number among all solvers on this buffer.
    #[serde(default)]
    pub solver_index: u32,
    /// Solvers on each node, those on devices too.
    #[serde(default = "one")]
    pub solvers: u32,
    /// The solver's number in the whole cluster, and how many there are; none: from `node`,
    /// `nodes`, `solver_index` and `solvers`, as many on each node.
    #[serde(default, with = "optional_shard")]
    pub shard: Option<Shard>,
    /// This node, from 0.
    #[serde(default)]
    pub node: u16,
    /// Number of nodes.
    #[serde(default = "one")]
    pub nodes: u16,
    /// Seed of the order of pictures.
    #[serde(default = "one")]
    pub seed: u64,
}

impl Settings for GpuSettings {
    const COMPONENT: &str = "gpu";

    fn validate(&self) -> Result<(), SettingsError> {
        if let Some(chunk) = self.chunk_weights.filter(|n| !CHUNK_WEIGHTS.contains(n)) {
            let (least, most) = (CHUNK_WEIGHTS.start(), CHUNK_WEIGHTS.end());
            let what = format!("{chunk}: give {least} to {most} weights");
            return Err(SettingsError::new("chunk_weights", what));
        }
        if let Some(adders) = self.adders.filter(|n| !ADDERS.contains(n)) {
            let what = format!("{adders}: give 1 to {ADDERS_MAX} threads");
            return Err(SettingsError::new("adders", what));
        }
        if let Some(UpRate::BytesPerS(rate)) = self.rate
            && (rate.is_nan() || rate < BYTES_MIN)
        {
            let what = format!("{rate}: give {BYTES_MIN} bytes per second or more");
            return Err(SettingsError::new("rate", what));
        }
        if self.solver.is_none() {
            return match self.data {
                Some(_) => Err(SettingsError::new("data", "is for a solver: name one too")),
                None => Ok(()),
            };
        }
        if self.solver_index >= self.solvers {
            let what = format!(
                "{} of {} solvers: they count from 0",
                self.solver_index, self.solvers
            );
            return Err(SettingsError::new("solver_index", what));
        }
        if let Some(Shard { index, of }) = self.shard.filter(|share| share.index >= share.of) {
            let what = format!("{index} of {of}: shares count from 0");
            return Err(SettingsError::new("shard", what));
        }
        if self.node >= MAX_NODES {
            let what = format!(
                "{}: nodes count from 0, there are {MAX_NODES} at most",
                self.node
            );
            return Err(SettingsError::new("node", what));
        }
        Ok(())
    }
}

impl GpuSettings {
    /// What the component runs, with the model and the pictures that `solver` and `data` name.
    pub fn job(self, model: Option<(SolverSpec, Source)>) -> GpuJob {
        let solver = model.map(|(spec, data)| DeviceSolverJob {
            data,
            spec,
            index: self.solver_index,
            shard: self.shard.unwrap_or(Shard {
                index: u32::from(self.node) * self.solvers + self.solver_index,
                // Who joins later has a share as if it had been there.
                of: u32::from(self.nodes.max(self.node + 1)) * self.solvers,
            }),
            seed: self.seed,
        });
        let sync = SyncJob {
            buffer: self.buffer,
            index: self.index,
            adding: Adding {
                writes: if self.atomic {
                    Writes::Atomic
                } else {
                    Writes::Racy
                },
                threads: self.adders.map_or_else(usual_adders, |n| n as usize),
            },
            chunk_weights: self.chunk_weights.map(|chunk| chunk as usize),
            rate_bytes_per_s: match (self.rate, self.device) {
                (Some(UpRate::BytesPerS(rate)), _) => Some(rate),
                (Some(UpRate::Max), _) | (None, Which::Cuda(_)) => None,
                (None, Which::Host) => Some(HOST_RATE_BYTES_PER_S),
            },
        };
        GpuJob {
            sync,
            ipc: self.ipc,
            solver,
        }
    }
}
