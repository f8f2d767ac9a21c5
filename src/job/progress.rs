//! Progress while a job runs: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::watch::{SolverMeter, StreamMeter, SyncMeter};
use crate::weights::{Role, SharedWeights, SlotInfo};

/// Time between two lines where no terminal is attached.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far a job is.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    line_due: Instant,
    target: u64,
    path: Path,
    last: Option<(Instant, u64, u64)>,
}

/// Which path keeps the nodes in step, for what is shown of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Streamers.
    Stream,
    /// Poseidon.
    Poseidon,
}

impl Progress {
    /// Progress towards `target` iterations; 0: unknown.
    pub(super) fn new(target: u64, path: Path) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(target);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left  {wide_msg}");
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            line_due: Instant::now() + LINE_EVERY,
            target,
            path,
            last: None,
        }
    }

    /// Shows the present state of `buffers`, one for each node.
    pub(super) fn show(&mut self, buffers: &[SharedWeights]) {
        let iterations = buffers
            .iter()
            .map(|shared| shared.globals().iterations())
            .max()
            .unwrap_or(0);
        if let Some(bar) = self.bar.clone() {
            bar.set_position(iterations.min(self.target));
            bar.set_message(self.message(buffers, iterations));
        } else if Instant::now() >= self.line_due {
            self.line_due = Instant::now() + LINE_EVERY;
            let message = self.message(buffers, iterations);
            dogwild_lab::note!("{iterations}/{}  {message}", self.target);
        }
    }

    fn message(&mut self, buffers: &[SharedWeights], iterations: u64) -> String {
        let slots: Vec<_> = buffers.iter().flat_map(SharedWeights::slots).collect();
        let solver = slots.iter().find(|slot| slot.role == Role::Solver);
        let float = |meter: SolverMeter| {
            solver.map_or(0.0, |slot| f32::from_bits(meter.of(&slot.meters) as u32))
        };
        let now = Instant::now();
        let sent = match self.path {
            Path::Stream => stream_sum(&slots, StreamMeter::FramesSent),
            Path::Poseidon => sync_sum(&slots, SyncMeter::BytesSent),
        };
        let (seconds, done, sent) = match self.last.replace((now, iterations, sent)) {
            Some((then, i, before)) => (
                (now - then).as_secs_f64(),
                iterations.saturating_sub(i),
                sent.saturating_sub(before),
            ),
            None => (f64::INFINITY, 0, 0),
        };
        let tail = match self.path {
            Path::Stream => stream_tail(&slots, sent as f64 / seconds),
            Path::Poseidon => sync_tail(&slots, sent as f64 / seconds),
        };
        format!(
            "loss {:.3}  accuracy {:.1} %  {:.0} it/s  {tail}",
            float(SolverMeter::LossBits),
            float(SolverMeter::AccuracyBits) * 100.0,
            done as f64 / seconds,
        )
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn stream_sum(slots: &[SlotInfo], meter: StreamMeter) -> u64 {
    let streams = slots.iter().filter(|slot| slot.role == Role::Stream);
    streams.map(|slot| meter.of(&slot.meters)).sum()
}

fn stream_tail(slots: &[SlotInfo], frames_per_s: f64) -> String {
    let missed = stream_sum(slots, StreamMeter::PositionsMissed);
    let taken = stream_sum(slots, StreamMeter::PositionsTaken);
    let streams = slots.iter().filter(|slot| slot.role == Role::Stream);
    let ages = streams.map(|slot| StreamMeter::AgeP50.of(&slot.meters));
    format!(
        "{frames_per_s:.0} frames/s  lost {:.1} %  age {:.1} ms",
        100.0 * missed as f64 / ((missed + taken).max(1)) as f64,
        ages.max().unwrap_or(0) as f64 / 1000.0,
    )
}

fn sync_sum(slots: &[SlotInfo], meter: SyncMeter) -> u64 {
    let workers = slots.iter().filter(|slot| slot.role == Role::Solver);
    workers.map(|slot| meter.of(&slot.meters)).sum()
}

fn sync_tail(slots: &[SlotInfo], bytes_per_s: f64) -> String {
    let waited = sync_sum(slots, SyncMeter::WaitNs) as f64;
    let workers = slots.iter().filter(|slot| slot.role == Role::Solver);
    let trained: u64 = workers
        .map(|slot| SolverMeter::TrainNs.of(&slot.meters))
        .sum();
    format!(
        "sent {:.1} MB/s  waiting {:.1} %",
        bytes_per_s / 1e6,
        100.0 * waited / (waited + trained as f64).max(1.0),
    )
}
