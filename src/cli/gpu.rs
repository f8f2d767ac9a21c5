//! `dogwild gpu`: a device in step with a buffer.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
#[cfg(not(feature = "cuda"))]
use anyhow::bail;

use super::args::{self, Rate};
use super::given::{Flags, Given};
use super::pictures::pictures;
use crate::device::Device;
use crate::device::Which;
use crate::device::host::HostDevice;
use crate::node::{run_gpu, stop_on_signals};
use crate::settings::{ADDERS, CHUNK_WEIGHTS, GpuSettings, UpRate};
use crate::solver::data::{Shard, Source};

/// Arguments of `dogwild gpu`.
pub(super) type Args = Given<GpuFlags>;

/// Flags of `dogwild gpu`.
#[derive(Debug, clap::Args)]
pub(super) struct GpuFlags {
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(*CHUNK_WEIGHTS.start())..=i64::from(*CHUNK_WEIGHTS.end())))]
    chunk: Option<u32>,
    /// Threads that add deltas to the buffer [default: a quarter of the cores, 1 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(*ADDERS.start())..=i64::from(*ADDERS.end())))]
    adders: Option<u32>,
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
    /// The device's solver's share of the pictures, K/N: the K-th of N in the cluster [default:
    /// from --node, --nodes, --solver-index and --solvers, as many on each node]
    #[arg(long, value_name = "K/N", value_parser = args::shard)]
    shard: Option<Shard>,
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

impl Flags for GpuFlags {
    type Settings = GpuSettings;

    fn settings(self) -> Result<GpuSettings> {
        Ok(GpuSettings {
            buffer: self.buffer,
            device: self.device,
            index: self.index,
            chunk_weights: self.chunk,
            adders: self.adders,
            rate: self
                .rate
                .map(|rate| rate.0.map_or(UpRate::Max, UpRate::BytesPerS)),
            atomic: self.atomic,
            ipc: self.ipc,
            solver: self.solver,
            data: self.data,
            solver_index: self.solver_index,
            solvers: self.solvers,
            node: self.node,
            nodes: self.nodes,
            shard: self.shard,
            seed: self.seed,
        })
    }
}

impl Given<GpuFlags> {
    pub(super) fn run(self) -> Result<()> {
        let metrics = self.metrics();
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let _serving = metrics.serve(&settings.buffer)?;
        match settings.device {
            Which::Host => on(&HostDevice::new(settings.index as usize), settings, &stop),
            #[cfg(feature = "cuda")]
            Which::Cuda(index) => on(
                &crate::device::cuda::CudaDevice::open(index)?,
                settings,
                &stop,
            ),
            #[cfg(not(feature = "cuda"))]
            Which::Cuda(_) => bail!(
                "this dogwild was built without CUDA: build it with `--features cuda`, or use --device host"
            ),
        }
    }
}

fn on<D: Device>(device: &D, settings: GpuSettings, stop: &AtomicBool) -> Result<()> {
    let model = settings.solver.as_ref().map(|solver| {
        let spec = args::model(solver)?;
        let data = pictures(settings.data.clone(), solver, &spec)?;
        anyhow::Ok((spec, data))
    });
    let model = model.transpose()?;
    Ok(run_gpu(device, &settings.job(model), stop)?)
}
