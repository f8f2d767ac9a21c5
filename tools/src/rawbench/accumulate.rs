//! `dogwild-rawbench accumulate`: how long devices wait for the sums of their gradients.
//!
//! Devices replay the times of a net's layers (they sleep) and give gradients of the real sizes,
//! which are copied, added and copied back for real; `replay` does that. Here: arguments and what
//! is measured; `report` has the table. Reads the net; touches memory only.

mod replay;
mod report;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use dogwild::accumulate::{Order, worth_a_copy};
#[cfg(feature = "cuda")]
use dogwild::device::cuda;
use dogwild::device::host::HostDevice;
use dogwild::device::{Device, DeviceError};
use dogwild::poseidon::Recording;
use dogwild_tools::nets;
use serde::Serialize;

use super::machine::Machine;
use replay::{Replay, When};
use report::{BUSY, NetReport, PaperReport, Report, RunReport};

/// Waiting for gradients that are accumulated on the CPU.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Nets, with commas: alexnet, googlenet, vgg16 and others (docs/guide/planning.md), a net
    /// prototxt, a layer table (.csv), or a recording of real times (.json)
    #[arg(
        long,
        value_name = "FILE",
        value_delimiter = ',',
        default_value = "alexnet,googlenet,vgg16"
    )]
    layers: Vec<String>,
    /// Numbers of devices, with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4")]
    devices: Vec<usize>,
    /// What the devices are
    #[arg(long, value_enum, default_value = "host")]
    device_kind: DeviceKind,
    /// Images of one device in one iteration; not for recordings
    #[arg(long, value_name = "K", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Images per second of one device, instead of the papers' figure; not for recordings
    #[arg(long, value_name = "IMG_PER_S")]
    throughput: Option<f64>,
    /// Iterations that are measured, after two that are not
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// How the fixed order of addition is kept
    #[arg(long, value_enum, default_value = "parts")]
    order: OrderArg,
    /// Layers of fewer weights than that are given together [default: as many as can be copied in
    /// the time that a copy takes for itself; 0: each alone]
    #[arg(long, value_name = "N")]
    join: Option<usize>,
    /// Divide the layers' weights by this; times stay
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    scale: f64,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum DeviceKind {
    /// Threads and memcpy
    Host,
    /// GPUs; several logical devices on each if there are fewer
    Cuda,
}

/// See [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum OrderArg {
    /// All threads add parts of a layer when all devices have given it
    Parts,
    /// Each device's thread waits for its turn
    Turns,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(
            self.devices.iter().all(|n| (1..=64).contains(n)),
            "--devices: give 1 to 64 of them"
        );
        ensure!(
            self.scale >= 1.0 && self.scale.is_finite(),
            "--scale {}: give 1 or more",
            self.scale
        );
        let machine = Machine::here("lo");
        let mut report = Report {
            processor: machine.processor,
            cores: machine.cores,
            kernel: machine.kernel,
            load: machine.load,
            device_kind: self.device_kind,
            order: self.order,
            iterations: self.iterations,
            scale: self.scale,
            nets: Vec::new(),
        };
        for file in &self.layers {
            report.nets.push(match self.device_kind {
                DeviceKind::Host => {
                    self.net(file, machine.cores, |index| Ok(HostDevice::new(index)))?
                }
                #[cfg(feature = "cuda")]
                DeviceKind::Cuda => {
                    let gpus = cuda::gpus()?.len();
                    // More devices than GPUs: several logical ones on each.
                    let open = |index: usize| cuda::CudaDevice::open(index % gpus.max(1));
                    self.net(file, machine.cores, open)?
                }
                #[cfg(not(feature = "cuda"))]
                DeviceKind::Cuda => bail!(
                    "this dogwild-rawbench was built without CUDA: build it with `--features cuda`, or use --device-kind host"
                ),
            });
        }
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            report.print();
        }
        Ok(())
    }

    /// Measures one net on the devices that `open` opens by their numbers.
    fn net<D: Device>(
        &self,
        file: &str,
        cores: usize,
        open: impl Fn(usize) -> Result<D, DeviceError>,
    ) -> Result<NetReport> {
        let (mut recording, times_source) = self.recording(file)?;
        for layer in &mut recording.layers {
            let scaled = layer.shape.outputs as f64 / self.scale;
            layer.shape.outputs = (scaled.round() as u64).max(1);
        }
        let order = match self.order {
            OrderArg::Parts => Order::Parts,
            OrderArg::Turns => Order::Turns,
        };
        let first = open(0)?;
        let least = self.join.map_or_else(|| worth_a_copy(&first), Ok)?;
        let replay = Replay::new(&recording, self.iterations, order, least)?;
        let alone = replay.run(&[first], When::Never)?;
        let mut runs = Vec::new();
        for &count in &self.devices {
            let devices = (0..count).map(&open).collect::<Result<Vec<_>, _>>()?;
            for when in [When::EachLayer, When::AfterThePass] {
                let found = replay.run(&devices, when)?;
                let cores_busy = found.cpu_s / found.wall_s / cores as f64;
                runs.push(RunReport {
                    devices: count,
                    overlapped: when == When::EachLayer,
                    wait_p50_us: found.waits_ns.value_at_quantile(0.5) as f64 / 1e3,
                    wait_p99_us: found.waits_ns.value_at_quantile(0.99) as f64 / 1e3,
                    iteration_ms: found.iteration_s * 1e3,
                    weak_scaling_efficiency: alone.iteration_s / found.iteration_s,
                    cores_busy,
                    machine_busy: found.machine_busy,
                    cores_allow: found.machine_busy < BUSY,
                });
            }
        }
        let times = recording.layers.iter().map(|l| l.forward() + l.backward());
        let net = Path::new(file).file_stem().unwrap_or_default();
        Ok(NetReport {
            layers_file: file.to_owned(),
            layers: recording.layers.len(),
            joined_below: least,
            copies: replay.copies(),
            images: recording.images,
            times_source,
            replayed_ms: times.sum::<Duration>().as_secs_f64() * 1e3,
            alone_ms: alone.iteration_s * 1e3,
            bytes: 4 * recording
                .layers
                .iter()
                .map(|l| l.shape.parameters())
                .sum::<u64>(),
            runs,
            paper: PaperReport::of(&net.to_string_lossy()),
        })
    }

    /// The layers and times of a net, and where the times come from.
    fn recording(&self, file: &str) -> Result<(Recording, String)> {
        if Path::new(file).extension().is_some_and(|end| end == "json") {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the recording {file}"))?;
            let recording = Recording::parse(&text).with_context(|| file.to_owned())?;
            return Ok((recording, file.to_owned()));
        }
        let (layers, stated) = nets::find(file, None)?;
        let (images_per_s, source) = match (self.throughput, stated.first()) {
            (Some(given), _) if given > 0.0 && given.is_finite() => (given, "--throughput"),
            (Some(given), _) => bail!("--throughput {given}: give images per second, above 0"),
            (None, Some(stated)) => (stated.images_per_s, stated.source),
            (None, None) => bail!(
                "the papers state no throughput for `{file}`: give --throughput IMG_PER_S, or a recording (.json)"
            ),
        };
        let times = nets::times(&layers, f64::from(self.batch) / images_per_s);
        let source = format!("{images_per_s:.1} images/s ({source}), divided by operations");
        Ok((nets::recording(&layers, &times, self.batch), source))
    }
}
