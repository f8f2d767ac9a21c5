//! `dogwild gpu`: a device in step with a buffer.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

#[cfg(not(feature = "cuda"))]
use anyhow::bail;
use anyhow::{Result, ensure};

use super::args::{self, Rate};
use super::pictures::pictures;
use crate::device::Device;
use crate::device::host::HostDevice;
use crate::node::{DeviceSolverJob, GpuJob, run_gpu, stop_on_signals};
use crate::solver::data::{Shard, Source};
use crate::weights::Writes;

/// Bytes per second that go up to a host device unless told otherwise: it shares the processor with
/// the solvers.
const HOST_RATE_BYTES_PER_S: f64 = 500e6;

/// Arguments of `dogwild gpu`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The node's buffer (dogwild init makes it)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// GPU by its number (nvidia-smi lists them), or host: a device of threads on any machine
    #[arg(long, value_name = "N|host")]
    device: Which,
    /// This component's number on this buffer
    #[arg(long, value_name = "K", default_value_t = 0)]
    index: u32,
    /// Weights of a chunk [default: the fastest of some that are tried]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    chunk: Option<u32>,
    /// Bytes per second that go up at most, or max [default: max for a GPU, 500MB for host]
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = args::rate)]
    rate: Option<Rate>,
    /// Local writers add atomically: the component then loses none of their additions (slower)
    #[arg(long)]
    atomic: bool,
    /// Let other processes use the device's weights in place: writes the CUDA IPC handle to
    /// FILE.gpuK.ipc
    #[arg(long)]
    ipc: bool,
    /// Train on the device's weights: built-in model (lenet, lenet_no_momentum, ...) or a Caffe
    /// solver file
    #[arg(long, value_name = "NAME|FILE")]
    solver: Option<String>,
    /// Pictures for --solver: digits, mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE", requires = "solver")]
    data: Option<Source>,
    /// The device's solver's number among all solvers on this buffer
    #[arg(long, value_name = "K", default_value_t = 0)]
    solver_index: u32,
    /// Solvers on each node, those on devices too
    #[arg(long, value_name = "N", default_value_t = 1)]
    solvers: u32,
    /// This node, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node: u16,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u16,
    /// Seed of the order of pictures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// A GPU.
    Cuda(usize),
    /// Threads.
    Host,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            _ => text
                .parse()
                .map(Self::Cuda)
                .map_err(|_| format!("`{text}`: give the number of a GPU, from 0, or host")),
        }
    }
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        match self.device {
            Which::Host => self.on(
                &HostDevice::new(self.index as usize),
                Some(HOST_RATE_BYTES_PER_S),
                &stop,
            ),
            #[cfg(feature = "cuda")]
            Which::Cuda(index) => {
                self.on(&crate::device::cuda::CudaDevice::open(index)?, None, &stop)
            }
            #[cfg(not(feature = "cuda"))]
            Which::Cuda(_) => bail!(
                "this dogwild was built without CUDA: build it with `--features cuda`, or use --device host"
            ),
        }
    }

    fn on<D: Device>(&self, device: &D, rate: Option<f64>, stop: &AtomicBool) -> Result<()> {
        let job = GpuJob {
            buffer: self.buffer.clone(),
            index: self.index,
            writes: if self.atomic {
                Writes::Atomic
            } else {
                Writes::Racy
            },
            chunk_weights: self.chunk.map(|chunk| chunk as usize),
            rate_bytes_per_s: self.rate.map_or(rate, |rate| rate.0),
            ipc: self.ipc,
            solver: self.solver_job()?,
        };
        Ok(run_gpu(device, &job, stop)?)
    }

    fn solver_job(&self) -> Result<Option<DeviceSolverJob>> {
        let Some(solver) = &self.solver else {
            return Ok(None);
        };
        ensure!(
            self.solver_index < self.solvers,
            "--solver-index {} of --solvers {}: they count from 0",
            self.solver_index,
            self.solvers
        );
        ensure!(
            self.node < self.nodes,
            "--node {} of --nodes {}: they count from 0",
            self.node,
            self.nodes
        );
        let spec = args::model(solver)?;
        Ok(Some(DeviceSolverJob {
            data: pictures(self.data.clone(), solver, &spec)?,
            spec,
            index: self.solver_index,
            shard: Shard {
                index: u32::from(self.node) * self.solvers + self.solver_index,
                of: u32::from(self.nodes) * self.solvers,
            },
            seed: self.seed,
        }))
    }
}
