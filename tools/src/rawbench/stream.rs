//! `dogwild-rawbench stream`: how fast buffers are kept in step, compared with the raw rate of the
//! same transport and memcpy of the same bytes, in one run.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dogwild::cli::args::as_value;
use dogwild::cli::stream_args::PrecisionArg;
use dogwild::watch::StreamMeter;
use dogwild::weights::SharedWeights;
use dogwild::wire::SCALE_BLOCK;
use dogwild_lab::Lab;
use serde::Serialize;

use super::fleet::{self, Fleet, FleetArgs, Reading};
use super::machine::InterfaceCounters;
use super::raw::{self, Direction};
use super::rounds;

mod table;

/// Time between two moves of weights that would rest; shorter than a pass over them at 100 Mb/s.
const MOVE_EVERY: Duration = Duration::from_millis(5);

/// Arguments of `dogwild-rawbench stream`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Bytes per second that a node sends at most, or max
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", default_value = "max", value_parser = checked_rate)]
    rate: String,
    /// Bytes of positions on the way without any answer, at most, as 2MB, or max
    #[arg(long, allow_hyphen_values = true, value_name = "BYTES", default_value = "2MB", value_parser = checked_rate)]
    window: String,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "3", value_parser = dogwild::cli::args::seconds)]
    seconds: f64,
    /// Measure so many times, everything anew, and show the round with the median share
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = rounds::count())]
    rounds: u32,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// A rate that streamers will understand, as it was written.
fn checked_rate(text: &str) -> Result<String, String> {
    dogwild::cli::args::rate(text).map(|_| text.to_owned())
}

/// What was measured. Rates are per node unless said otherwise.
#[derive(Debug, Serialize)]
struct Report {
    transport: String,
    nodes: u16,
    weights: u64,
    mtu: u32,
    #[serde(serialize_with = "as_value")]
    precision: PrecisionArg,
    rate: String,
    lab: bool,
    seconds: f64,
    /// Whole exchanges of the buffer per second: the slowest node's passes over its own range.
    cycles_per_s: f64,
    /// Frames sent and received per second.
    frames_sent_per_s: f64,
    frames_received_per_s: f64,
    /// Payload bytes of those frames.
    sent_bytes_per_s: f64,
    /// Share of positions that never arrived, and of deltas that had to be sent again.
    positions_lost_share: f64,
    deltas_repeated_share: f64,
    deltas_kept_share: f64,
    kernel_drops: u64,
    /// CPU seconds per second.
    cpu_share: f64,
    /// Share of the time in which a node had nothing to take and nothing to send, each node's.
    waited_share: Vec<f64>,
    /// Age of foreign chunks, µs.
    age_p50_us: u64,
    age_p99_us: u64,
    age_max_us: u64,
    drops: Vec<(&'static str, u64)>,
    raw: Vec<raw::Outcome>,
    /// Frames received per second as a share of the raw two-way rate.
    share_of_raw_two_way: f64,
    /// The same of the raw two-way rate out of and into buffers of the weights' size.
    share_of_raw_buffers: f64,
    /// How fast one core reads what the other has just written, before and after. On a virtual
    /// machine this changes with the host's choice of cores, and rates that cross cores change with
    /// it.
    core_to_core_bytes_per_s: [f64; 2],
    /// All rounds in order; empty if there was one.
    rounds: Vec<Round>,
    /// Frames and bytes that left the interface of node 0 (a lab's, and not over udp with
    /// segmentation, where the interface sees joined frames) for each position and for each pass
    /// over its range.
    interface: Option<PerCycle>,
    /// memcpy of the buffer's bytes.
    memcpy_bytes_per_s: f64,
    memcpy_buffers_per_s: f64,
}

/// What one node's interface sent.
#[derive(Debug, Serialize)]
struct PerCycle {
    /// Deltas and hellos taken off: 1 if one frame serves all slaves.
    frames_per_position: f64,
    /// Positions of the own range, deltas of the others', all headers.
    bytes_per_cycle: f64,
}

/// What is compared between rounds.
#[derive(Debug, Serialize)]
struct Round {
    frames_received_per_s: f64,
    raw_two_way_per_s: f64,
    share_of_raw_two_way: f64,
    share_of_raw_buffers: f64,
    core_to_core_bytes_per_s: [f64; 2],
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let mut reports = (0..self.rounds)
            .map(|_| self.round())
            .collect::<Result<Vec<_>>>()?;
        let rounds: Vec<Round> = reports.iter().map(Report::as_round).collect();
        reports.sort_by(|a, b| a.share_of_raw_two_way.total_cmp(&b.share_of_raw_two_way));
        let mut report = reports.swap_remove(reports.len() / 2);
        if rounds.len() > 1 {
            report.rounds = rounds;
        }
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            dogwild_lab::say!("{}", report.table());
        }
        Ok(())
    }

    fn round(&self) -> Result<Report> {
        let (mut report, core_to_core) = rounds::between_core_rates(|| self.measure())?;
        report.core_to_core_bytes_per_s = core_to_core;
        Ok(report)
    }

    fn measure(&self) -> Result<Report> {
        let raw = self.measure_raw()?;
        let memcpy = memcpy_bytes_per_s(self.fleet.weights as usize * 4);
        let stream_args: Vec<String> = ["--rate", &self.rate, "--window", &self.window.to_string()]
            .map(str::to_owned)
            .into();
        let lab = self.fleet.make_lab()?;
        let untouched = lab.as_ref().and_then(fleet::interface);
        let mut fleet = Fleet::start(&self.fleet, lab, &stream_args)?;
        std::thread::sleep(Duration::from_millis(500));
        let before = fleet.read();
        self.let_stream(&fleet);
        let after = fleet.read();
        // Streamers publish their counters now and then, but once more at their end: only then do
        // they and the interface's agree.
        fleet.stop()?;
        let now = fleet.lab.as_ref().and_then(fleet::interface);
        let whole = fleet.read();
        drop(fleet);
        let mut report = self.report(&before, &after, raw, memcpy);
        // Over udp the interface counts joined frames.
        report.interface = untouched
            .zip(now)
            .filter(|_| self.fleet.transport.is_raw())
            .map(|(then, now)| PerCycle::of(&whole[0], then, now));
        Ok(report)
    }

    /// Sleeps, and in a narrow precision moves a weight of every chunk now and then: weights at
    /// rest would travel in f32.
    fn let_stream(&self, fleet: &Fleet) {
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            if self.fleet.precision == PrecisionArg::F32 {
                std::thread::sleep(left);
                continue;
            }
            for w in fleet.buffers.iter().map(SharedWeights::view) {
                (0..w.len())
                    .step_by(SCALE_BLOCK)
                    .for_each(|i| w.racy_add(i, 1.0));
            }
            std::thread::sleep(left.min(MOVE_EVERY));
        }
    }

    fn measure_raw(&self) -> Result<Vec<raw::Outcome>> {
        let lab = self.fleet.make_lab()?;
        [
            Direction::OneWay,
            Direction::BuffersBothWays,
            // Last, so that the stream that is held against it follows at once.
            Direction::BothWays,
        ]
        .into_iter()
        .map(|direction| self.raw_run(lab.as_ref(), direction))
        .collect()
    }

    /// Two processes, in the first two hosts, that only send and receive.
    fn raw_run(&self, lab: Option<&Lab>, direction: Direction) -> Result<raw::Outcome> {
        let start = |node: u16| -> Result<std::process::Child> {
            let mut command = self.fleet.command(lab, node)?;
            command.args([
                "component",
                "raw",
                "--transport",
                self.fleet.transport.name(),
            ]);
            command.args([
                "--mtu",
                &self.fleet.mtu.to_string(),
                "--seconds",
                &self.seconds.to_string(),
            ]);
            command.args(["--node", &node.to_string()]);
            if let Some(iface) = self.fleet.iface(node) {
                command.args(["--iface", &iface]);
            }
            if direction != Direction::OneWay || node == 0 {
                command.arg("--send");
            }
            if direction == Direction::BuffersBothWays {
                let bytes = self.fleet.weights * 4;
                command.args(["--buffer-bytes", &bytes.to_string()]);
            }
            command.stdout(Stdio::piped()).stdin(Stdio::null());
            command.spawn().context("cannot start a raw sender")
        };
        let children = [start(0)?, start(1)?];
        let mut ends = Vec::new();
        for child in children {
            let output = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ends.push(
                serde_json::from_str::<raw::End>(&text)
                    .with_context(|| format!("raw run said `{text}`"))?,
            );
        }
        Ok(raw::Outcome::of(direction, &ends))
    }

    fn report(
        &self,
        before: &[Reading],
        after: &[Reading],
        raw: Vec<raw::Outcome>,
        memcpy: f64,
    ) -> Report {
        let mean = |meter: StreamMeter| {
            let sum: f64 = after
                .iter()
                .zip(before)
                .map(|(a, b)| a.per_s(b, meter))
                .sum();
            sum / after.len() as f64
        };
        let share = |part: StreamMeter, rest: StreamMeter| {
            let (part, rest) = (mean(part), mean(rest));
            if part + rest > 0.0 {
                part / (part + rest)
            } else {
                0.0
            }
        };
        let slowest = after
            .iter()
            .zip(before)
            .map(|(a, b)| a.per_s(b, StreamMeter::Cycles));
        let most = |meter: StreamMeter| after.iter().map(|a| a.now(meter)).max().unwrap_or(0);
        let received = mean(StreamMeter::FramesReceived);
        let share_of = |direction| {
            let outcome = raw.iter().find(|r| r.direction == direction);
            outcome
                .filter(|r| r.received_per_s > 0.0)
                .map_or(0.0, |r| received / r.received_per_s)
        };
        Report {
            transport: self.fleet.transport.name().into(),
            nodes: self.fleet.nodes,
            weights: self.fleet.weights,
            mtu: self.fleet.mtu,
            precision: self.fleet.precision,
            rate: self.rate.clone(),
            lab: self.fleet.lab,
            seconds: self.seconds,
            cycles_per_s: slowest.fold(f64::INFINITY, f64::min),
            frames_sent_per_s: mean(StreamMeter::FramesSent),
            frames_received_per_s: received,
            sent_bytes_per_s: mean(StreamMeter::BytesSent),
            positions_lost_share: share(StreamMeter::PositionsMissed, StreamMeter::PositionsTaken),
            deltas_repeated_share: mean(StreamMeter::DeltasRepeated)
                / mean(StreamMeter::DeltasSent).max(1e-9),
            deltas_kept_share: share(StreamMeter::DeltasKept, StreamMeter::DeltasSent),
            kernel_drops: after
                .iter()
                .zip(before)
                .map(|(a, b)| a.since(b, StreamMeter::KernelDrops))
                .sum(),
            cpu_share: mean(StreamMeter::CpuNs) / 1e9,
            waited_share: after
                .iter()
                .zip(before)
                .map(|(a, b)| a.per_s(b, StreamMeter::WaitedNs) / 1e9)
                .collect(),
            age_p50_us: most(StreamMeter::AgeP50),
            age_p99_us: most(StreamMeter::AgeP99),
            age_max_us: most(StreamMeter::AgeMax),
            drops: after.iter().flat_map(Reading::drops).collect(),
            share_of_raw_two_way: share_of(Direction::BothWays),
            share_of_raw_buffers: share_of(Direction::BuffersBothWays),
            core_to_core_bytes_per_s: [0.0; 2],
            rounds: Vec::new(),
            raw,
            interface: None,
            memcpy_bytes_per_s: memcpy,
            memcpy_buffers_per_s: memcpy / (self.fleet.weights as f64 * 4.0),
        }
    }
}

impl PerCycle {
    /// Of all that a streamer has counted, and what its interface has before and after.
    fn of(whole: &Reading, then: InterfaceCounters, now: InterfaceCounters) -> Self {
        let count = |meter| whole.now(meter) as f64;
        let others = [
            StreamMeter::DeltasSent,
            StreamMeter::HellosSent,
            StreamMeter::RestoresSent,
        ];
        let frames = (now.sent_frames - then.sent_frames) as f64;
        let positions = frames - others.map(count).iter().sum::<f64>();
        Self {
            frames_per_position: positions / count(StreamMeter::PositionsSent).max(1.0),
            bytes_per_cycle: (now.sent_bytes - then.sent_bytes) as f64
                / count(StreamMeter::Cycles).max(1.0),
        }
    }
}

impl Report {
    fn as_round(&self) -> Round {
        let two_way = |r: &&raw::Outcome| r.direction == Direction::BothWays;
        Round {
            frames_received_per_s: self.frames_received_per_s,
            raw_two_way_per_s: self
                .raw
                .iter()
                .find(two_way)
                .map_or(0.0, |r| r.received_per_s),
            share_of_raw_two_way: self.share_of_raw_two_way,
            share_of_raw_buffers: self.share_of_raw_buffers,
            core_to_core_bytes_per_s: self.core_to_core_bytes_per_s,
        }
    }
}

/// Copies `bytes` bytes again and again for a quarter of a second; bytes per second.
fn memcpy_bytes_per_s(bytes: usize) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![0u8; bytes];
    to.copy_from_slice(&from);
    let start = Instant::now();
    let mut copies = 0u32;
    while start.elapsed() < Duration::from_millis(250) {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        copies += 1;
    }
    f64::from(copies) * bytes as f64 / start.elapsed().as_secs_f64()
}
