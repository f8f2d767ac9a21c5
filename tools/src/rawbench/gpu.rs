//! The GPU syncer alone: bytes up and down per second, compared with plain copies of the same
//! bytes, and sync cycles per second.
//!
//! In turns within one run, so that other load meets both alike. The device's weights are moved
//! before each cycle, so that every delta is added to the buffer. Touches one buffer under
//! /dev/shm, which is removed at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild::device::Which;
use dogwild::device::host::HostDevice;
use dogwild::device::kernels::add_scalar;
use dogwild::device::{Device, DeviceError, HostMemory, Memory, Stream};
use dogwild::node::{Adding, GpuSyncer, slot_words};
use dogwild::settings::ADDERS;
use dogwild::watch::screen::Columns;
use dogwild::weights::{
    BufferSpec, Created, Existing, GpuState, Manifest, SharedWeights, Writes, device_len,
};
use dogwild_tools::scratch::Scratch;

/// Turns that copies and cycles take.
const TURNS: u32 = 5;

/// Arguments of `dogwild-rawbench gpu`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GPU by its number, or host
    #[arg(long, value_name = "N|host", default_value = "host")]
    device: Which,
    /// Numbers of weights (LeNet's, AlexNet's)
    #[arg(long, value_delimiter = ',', default_values_t = [431_080, 61_300_000])]
    weights: Vec<usize>,
    /// Weights of a chunk [default: the fastest of some that are tried]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    chunk: Option<u32>,
    /// Threads that add deltas to the buffer: a line for each number of them
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(i64::from(*ADDERS.start())..=i64::from(*ADDERS.end())))]
    adders: Vec<u32>,
    /// Add atomically: what solvers add meanwhile is never lost
    #[arg(long)]
    atomic: bool,
    /// Time for each figure, seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = dogwild::cli::args::seconds)]
    seconds: f64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// The result for one number of weights.
#[derive(serde::Serialize)]
struct Line {
    device: String,
    weights: usize,
    chunk: usize,
    adders: usize,
    /// Passes over all weights per second: up, kernel, down, added to the buffer.
    cycles_per_s: f64,
    /// Bytes up per second in those cycles; as many come down.
    sync_up_bytes_per_s: f64,
    sync_down_bytes_per_s: f64,
    /// Plain pinned copies of the same chunks, up and down at the same time on two streams, each
    /// way.
    copy_up_bytes_per_s: f64,
    copy_down_bytes_per_s: f64,
    /// What the syncer reaches of those.
    up_share: f64,
    down_share: f64,
    /// The share of its time that the syncer's thread waited for the device; with one adder
    /// it adds deltas in the rest.
    wait_share: f64,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let lines = match self.device {
            Which::Host => self.on(&HostDevice::new(0))?,
            #[cfg(feature = "cuda")]
            Which::Cuda(index) => self.on(&dogwild::device::cuda::CudaDevice::open(index)?)?,
            #[cfg(not(feature = "cuda"))]
            Which::Cuda(_) => anyhow::bail!(
                "this dogwild-rawbench was built without CUDA: build it with `--features cuda`, or use --device host"
            ),
        };
        for line in lines.iter().filter(|_| self.json) {
            dogwild_lab::say!("{}", serde_json::to_string(line)?);
        }
        if !self.json {
            dogwild_lab::say!("{}", table(&lines));
        }
        Ok(())
    }

    fn on<D: Device>(&self, device: &D) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for &n in &self.weights {
            anyhow::ensure!(n > 0, "--weights 0: give 1 or more");
            for &adders in &self.adders {
                lines.push(self.measure(device, n, adders as usize)?);
            }
        }
        Ok(lines)
    }

    fn measure<D: Device>(&self, device: &D, n: usize, adders: usize) -> Result<Line> {
        let folder = Scratch::new("dogwild-rawbench")?;
        let shared = Arc::new(buffer(&folder, n)?);
        let path = GpuState::path_beside(shared.path(), 0);
        let (state, _) = GpuState::open_or_create(&path, shared.id(), n, slot_words(n))?;
        let adding = Adding {
            writes: if self.atomic {
                Writes::Atomic
            } else {
                Writes::Racy
            },
            threads: adders,
        };
        let mut syncer = GpuSyncer::new(device, &shared, &Arc::new(state), adding)?;
        match self.chunk {
            Some(chunk) => syncer.set_chunk(chunk as usize)?,
            None => drop(syncer.measure()?),
        }
        let mut copies = Copies::new(device, n, syncer.chunk())?;
        let turn = Duration::from_secs_f64(self.seconds / f64::from(TURNS));
        let before = syncer.counts();
        let (mut sync_s, mut copy_s, mut copied) = (0.0, 0.0, 0);
        copies.pass()?;
        for _ in 0..TURNS {
            let start = Instant::now();
            while start.elapsed() < turn {
                add_scalar(&**syncer.stream(), syncer.weights().all(), 1.0)?;
                syncer.cycle()?;
            }
            syncer.drain()?;
            sync_s += start.elapsed().as_secs_f64();
            let start = Instant::now();
            while start.elapsed() < turn {
                copied += copies.pass()?;
            }
            copy_s += start.elapsed().as_secs_f64();
        }
        let counts = syncer.counts();
        let up = (counts.bytes_up - before.bytes_up) as f64 / sync_s;
        let down = (counts.bytes_down - before.bytes_down) as f64 / sync_s;
        let copy = copied as f64 / copy_s;
        Ok(Line {
            device: device.name(),
            weights: n,
            chunk: syncer.chunk(),
            adders,
            cycles_per_s: (counts.cycles - before.cycles) as f64 / sync_s,
            sync_up_bytes_per_s: up,
            sync_down_bytes_per_s: down,
            copy_up_bytes_per_s: copy,
            copy_down_bytes_per_s: copy,
            up_share: up / copy,
            down_share: down / copy,
            wait_share: (counts.wait_ns - before.wait_ns) as f64 / 1e9 / sync_s,
        })
    }
}

/// Plain copies of as many bytes in chunks as large, both ways at once.
struct Copies<D: Device> {
    host: [HostMemory; 2],
    device: [D::Memory; 2],
    streams: [D::Stream; 2],
    chunk: usize,
}

impl<D: Device> Copies<D> {
    fn new(device: &D, n: usize, chunk: usize) -> Result<Self> {
        let n = device_len(n);
        let host = [HostMemory::zeroed(n)?, HostMemory::zeroed(n)?];
        for memory in &host {
            device.pin(memory)?;
            // Pages that were never written are all the same one: no copy of memory at all.
            (0..n).for_each(|i| memory.view().store(i, 1.0));
        }
        Ok(Self {
            host,
            device: [device.alloc(n)?, device.alloc(n)?],
            streams: [device.stream()?, device.stream()?],
            chunk,
        })
    }

    /// All weights up, and as many down; gives the bytes of one way.
    fn pass(&mut self) -> Result<u64, DeviceError> {
        let n = self.host[0].len();
        let [up, down] = &self.streams;
        for first in (0..n).step_by(self.chunk) {
            let part = first..n.min(first + self.chunk);
            up.upload(
                self.host[0].part(part.clone()),
                self.device[0].part(part.clone()),
            )?;
            down.download(self.device[1].part(part.clone()), self.host[1].part(part))?;
        }
        up.finish()?;
        down.finish()?;
        Ok(4 * n as u64)
    }
}

fn buffer(folder: &Scratch, n: usize) -> Result<SharedWeights> {
    let spec = BufferSpec {
        session: 1,
        manifest: Manifest::new(vec![("w".into(), vec![n])])?,
        data: Default::default(),
    };
    match SharedWeights::create(&folder.file("w"), &spec, Existing::Refuse)? {
        Created::New(new) => Ok(new.ready()),
        Created::Resumed(old) => Ok(old),
    }
}

fn table(lines: &[Line]) -> Columns {
    let mut table = Columns::boxed([
        "device",
        "weights",
        "chunk",
        "adders",
        "cycles/s",
        "sync up",
        "sync down",
        "copy each way",
        "up share",
        "down share",
        "waits",
    ]);
    let rate = |bytes: f64| format!("{:.2} GB/s", bytes / 1e9);
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    for line in lines {
        table.row([
            line.device.clone(),
            line.weights.to_string(),
            line.chunk.to_string(),
            line.adders.to_string(),
            format!("{:.1}", line.cycles_per_s),
            rate(line.sync_up_bytes_per_s),
            rate(line.sync_down_bytes_per_s),
            rate(line.copy_up_bytes_per_s),
            share(line.up_share),
            share(line.down_share),
            share(line.wait_share),
        ]);
    }
    table
}
