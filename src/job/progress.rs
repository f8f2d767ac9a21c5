//! Progress while a job runs: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::watch::{SolverMeter, StreamMeter};
use crate::weights::{Role, SharedWeights};

/// Time between two lines where no terminal is attached.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far a job is.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    line_due: Instant,
    target: u64,
    last: Option<(Instant, u64, u64)>,
}

impl Progress {
    /// Progress towards `target` iterations; 0: unknown.
    pub(super) fn new(target: u64) -> Self {
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
            eprintln!("{iterations}/{}  {message}", self.target);
        }
    }

    fn message(&mut self, buffers: &[SharedWeights], iterations: u64) -> String {
        let slots: Vec<_> = buffers.iter().flat_map(SharedWeights::slots).collect();
        let streams = || slots.iter().filter(|slot| slot.role == Role::Stream);
        let sum = |meter: StreamMeter| streams().map(|slot| meter.of(&slot.meters)).sum::<u64>();
        let frames = sum(StreamMeter::FramesSent);
        let (missed, taken) = (
            sum(StreamMeter::PositionsMissed),
            sum(StreamMeter::PositionsTaken),
        );
        let age = streams()
            .map(|slot| StreamMeter::AgeP50.of(&slot.meters))
            .max()
            .unwrap_or(0);
        let solver = slots.iter().find(|slot| slot.role == Role::Solver);
        let float = |meter: SolverMeter| {
            solver.map_or(0.0, |slot| f32::from_bits(meter.of(&slot.meters) as u32))
        };
        let now = Instant::now();
        let (seconds, done, sent) = match self.last.replace((now, iterations, frames)) {
            Some((then, i, f)) => (
                (now - then).as_secs_f64(),
                iterations.saturating_sub(i),
                frames.saturating_sub(f),
            ),
            None => (f64::INFINITY, 0, 0),
        };
        format!(
            "loss {:.3}  accuracy {:.1} %  {:.0} it/s  {:.0} frames/s  lost {:.1} %  age {:.1} ms",
            float(SolverMeter::LossBits),
            float(SolverMeter::AccuracyBits) * 100.0,
            done as f64 / seconds,
            sent as f64 / seconds,
            100.0 * missed as f64 / ((missed + taken).max(1)) as f64,
            age as f64 / 1000.0,
        )
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
