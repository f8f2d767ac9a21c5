//! How often a line of rates is printed; the one of a solver, and its counters at the end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::watch::SolverMeter;
use crate::weights::{METERS, SharedWeights};

/// Time between two lines of rates if nothing else is said, s.
const LINE_EVERY_S: u64 = 5;
/// Names the time between two lines, s; 0: none. `dogwild train` sets it, whose logs no one
/// watches.
pub(crate) const LINE_EVERY_ENV: &str = "DOGWILD_LINE_EVERY_S";

/// Time between two lines of rates; `None`: there are none.
pub(crate) fn line_every() -> Option<Duration> {
    let asked = std::env::var(LINE_EVERY_ENV).ok();
    let seconds = asked.and_then(|text| text.parse().ok());
    Some(Duration::from_secs(seconds.unwrap_or(LINE_EVERY_S))).filter(|every| !every.is_zero())
}

/// When the last line was, and what it said.
#[derive(Debug)]
pub(super) struct Line {
    every: Option<Duration>,
    said_ns: u64,
    before: u64,
}

impl Line {
    /// No line yet, after `iterations`.
    pub(super) fn new(iterations: u64) -> Self {
        Self {
            every: line_every(),
            said_ns: 0,
            before: iterations,
        }
    }

    /// Prints it, if it is time for it.
    pub(super) fn say(
        &mut self,
        shared: &SharedWeights,
        meters: &[AtomicU64; METERS],
        loss: Option<f32>,
        now_ns: u64,
    ) {
        let passed_ns = now_ns - self.said_ns;
        if self
            .every
            .is_none_or(|every| passed_ns < every.as_nanos() as u64)
        {
            return;
        }
        let iterations = meters[SolverMeter::Iterations as usize].load(Relaxed);
        let per_s = (iterations - self.before) as f64 * 1e9 / passed_ns as f64;
        (self.said_ns, self.before) = (now_ns, iterations);
        let globals = shared.globals();
        log::info!(
            "iteration {} of the cluster{}: {iterations} here, {per_s:.1}/s, loss {:.4}",
            globals.iterations(),
            match globals.target_iterations.load(Relaxed) {
                0 => String::new(),
                target => format!(" of {target}"),
            },
            loss.unwrap_or(f32::NAN),
        );
    }

    /// Prints all counters: the solver ends.
    pub(super) fn say_totals(meters: &[AtomicU64; METERS]) {
        let words = meters.each_ref().map(|word| word.load(Relaxed));
        let float = |meter: SolverMeter| f32::from_bits(meter.of(&words) as u32);
        log::info!(
            "counters at the end: iterations {}, images {}, loss {:.4}, rate {}, stride {:.2}, accuracy {:.4}, \
             train_s {:.1}, cpu_s {:.1}",
            SolverMeter::Iterations.of(&words),
            SolverMeter::Images.of(&words),
            float(SolverMeter::LossBits),
            float(SolverMeter::RateBits),
            float(SolverMeter::StrideBits),
            float(SolverMeter::AccuracyBits),
            SolverMeter::TrainNs.of(&words) as f64 / 1e9,
            SolverMeter::CpuNs.of(&words) as f64 / 1e9,
        );
    }
}
