//! Progress while a job runs: a bar on a terminal, plain lines elsewhere; both fit the screen.
//!
//! Reads counters. Before the first iteration, and while a job settles, it names what is waited
//! for.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::missing::{Nodes, Path, missing};
use crate::watch::screen::{WIDTH_PLAIN, fit};
use crate::watch::{SolverMeter, StreamMeter, SyncMeter};
use crate::weights::{Role, SharedWeights, SlotInfo};

/// Time between two lines where no terminal is attached.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// A wait that is shorter is not worth a line.
const WAIT_SAID_AFTER: Duration = Duration::from_secs(1);
/// Time over which rates are taken: shorter, they only flicker.
const RATE_OVER: Duration = Duration::from_millis(500);

/// Shows how far a job is.
pub(super) struct Progress {
    bar: Option<Bar>,
    line_due: Instant,
    target: u64,
    path: Path,
    nodes: Nodes,
    last: Option<(Instant, u64, u64)>,
    /// Iterations and frames (bytes) per second, once there are two looks.
    rates: Option<[f64; 2]>,
}

struct Bar {
    bar: ProgressBar,
    waits: bool,
}

impl Bar {
    /// Two lines: how far, and how it goes; one while something is waited for.
    fn style(&mut self, target: u64, waits: bool) {
        if self.waits == waits {
            return;
        }
        self.waits = waits;
        let template = match (waits, target) {
            (true, _) => "{spinner} {wide_msg}",
            (false, 0) => "{spinner} {pos} iterations in {elapsed}\n{wide_msg}",
            (false, _) => "{bar:30} {pos}/{len}  {eta} left\n{wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }
}

impl Progress {
    /// Progress towards `target` iterations (0: unknown) of a job of these nodes.
    pub(super) fn new(target: u64, path: Path, nodes: Nodes) -> Self {
        let bar = dogwild_lab::out::shows_bars().then(|| Bar {
            bar: ProgressBar::new(target),
            waits: false,
        });
        Self {
            bar,
            line_due: Instant::now() + WAIT_SAID_AFTER,
            target,
            path,
            nodes,
            last: None,
            rates: None,
        }
    }

    /// Shows the present state of `buffers`, one for each node that runs here.
    pub(super) fn show(&mut self, buffers: &[SharedWeights]) {
        let iterations = buffers
            .iter()
            .map(|shared| shared.globals().iterations())
            .max()
            .unwrap_or(0);
        if iterations == 0 {
            self.waiting(&missing(buffers, self.path, &self.nodes));
            return;
        }
        let due = Instant::now() >= self.line_due;
        if self.bar.is_none() && !due {
            return;
        }
        let slots: Vec<_> = buffers.iter().flat_map(SharedWeights::slots).collect();
        self.take_rates(&slots, iterations);
        let parts = self.parts(&slots);
        let target = self.target;
        if let Some(bar) = &mut self.bar {
            bar.style(target, false);
            // Nodes hear of each other's iterations late and make a few too many.
            bar.bar.set_position(match target {
                0 => iterations,
                _ => iterations.min(target),
            });
            // The bar knows the width of its terminal; what has no room is left out, not cut.
            let width = terminal_width();
            bar.bar.set_message(fit(&parts, width));
        } else {
            let mut line = vec![count(iterations, target)];
            line.extend(parts);
            dogwild_lab::progress!("{}", fit(&line, WIDTH_PLAIN));
            self.line_due = Instant::now() + LINE_EVERY;
        }
    }

    /// Says what is waited for: at once on a terminal, as a line every few seconds elsewhere.
    pub(super) fn waiting(&mut self, what: &str) {
        let line = format!("waiting for {what}");
        if let Some(bar) = &mut self.bar {
            bar.style(self.target, true);
            bar.bar.set_message(cut(&line, terminal_width() - 2));
            bar.bar.tick();
        } else if Instant::now() >= self.line_due {
            dogwild_lab::progress!("{}", cut(&line, WIDTH_PLAIN));
            self.line_due = Instant::now() + LINE_EVERY;
        }
    }

    fn take_rates(&mut self, slots: &[SlotInfo], iterations: u64) {
        let sent = match self.path {
            Path::Stream => stream_sum(slots, StreamMeter::FramesSent),
            Path::Poseidon => sync_sum(slots, SyncMeter::BytesSent),
        };
        let now = Instant::now();
        match self.last {
            Some((then, ..)) if now - then < RATE_OVER => {}
            Some((then, done, before)) => {
                let rate = |new: u64| new as f64 / (now - then).as_secs_f64();
                self.rates = Some([
                    rate(iterations.saturating_sub(done)),
                    rate(sent.saturating_sub(before)),
                ]);
                self.last = Some((now, iterations, sent));
            }
            None => self.last = Some((now, iterations, sent)),
        }
    }

    /// What is shown next to the count, the most important first.
    fn parts(&self, slots: &[SlotInfo]) -> Vec<String> {
        let solvers = || slots.iter().filter(|slot| slot.role == Role::Solver);
        let float = |meter: SolverMeter| {
            let bits = solvers().map(|slot| meter.of(&slot.meters));
            // 0: not measured yet.
            let bits = bits.map(|bits| bits as u32).find(|bits| *bits != 0);
            bits.map(f32::from_bits)
        };
        let text =
            |value: Option<f32>, text: &dyn Fn(f32) -> String| value.map_or(String::new(), text);
        let [per_s, sent] = [0, 1].map(|of| self.rates.map(|rates| rates[of]));
        let mut parts = vec![
            text(float(SolverMeter::LossBits), &|loss| {
                format!("loss {loss:.3}")
            }),
            text(float(SolverMeter::AccuracyBits), &|share| {
                format!("accuracy {:.1} %", share * 100.0)
            }),
            per_s.map_or(String::new(), |per_s| format!("{per_s:.0} it/s")),
        ];
        parts.extend(match self.path {
            Path::Stream => stream_parts(slots, sent),
            Path::Poseidon => sync_parts(slots, sent),
        });
        parts
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.bar.finish_and_clear();
        }
    }
}

/// Columns of the terminal that the bar stands on.
fn terminal_width() -> usize {
    crate::watch::screen::width()
}

/// `line`, or its beginning if it is wider than `width`.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// How many iterations, of how many if that is known.
fn count(iterations: u64, target: u64) -> String {
    match target {
        0 => format!("{iterations} iterations"),
        _ => format!("{iterations}/{target}"),
    }
}

/// The iterations that a line of progress says are done, with or without a target: what a program
/// that starts `dogwild train` may read from it.
pub fn iterations_of(line: &str) -> Option<u64> {
    let (word, rest) = line.split_once(' ')?;
    match word.split_once('/') {
        Some((done, target)) => target.parse::<u64>().ok().and(done.parse().ok()),
        None if rest.starts_with("iterations") => word.parse().ok(),
        None => None,
    }
}

fn stream_sum(slots: &[SlotInfo], meter: StreamMeter) -> u64 {
    let streams = slots.iter().filter(|slot| slot.role == Role::Stream);
    streams.map(|slot| meter.of(&slot.meters)).sum()
}

fn stream_parts(slots: &[SlotInfo], frames_per_s: Option<f64>) -> Vec<String> {
    let streams = || slots.iter().filter(|slot| slot.role == Role::Stream);
    if streams().next().is_none() {
        return Vec::new();
    }
    let missed = stream_sum(slots, StreamMeter::PositionsMissed);
    let taken = stream_sum(slots, StreamMeter::PositionsTaken);
    let ages = streams().map(|slot| StreamMeter::AgeP50.of(&slot.meters));
    vec![
        format!("age {:.1} ms", ages.max().unwrap_or(0) as f64 / 1000.0),
        format!(
            "lost {:.1} %",
            100.0 * missed as f64 / ((missed + taken).max(1)) as f64
        ),
        frames_per_s.map_or(String::new(), |per_s| format!("{per_s:.0} frames/s")),
    ]
}

fn sync_sum(slots: &[SlotInfo], meter: SyncMeter) -> u64 {
    let workers = slots.iter().filter(|slot| slot.role == Role::Solver);
    workers.map(|slot| meter.of(&slot.meters)).sum()
}

fn sync_parts(slots: &[SlotInfo], bytes_per_s: Option<f64>) -> Vec<String> {
    let waited = sync_sum(slots, SyncMeter::WaitNs) as f64;
    let workers = slots.iter().filter(|slot| slot.role == Role::Solver);
    let trained: u64 = workers
        .map(|slot| SolverMeter::TrainNs.of(&slot.meters))
        .sum();
    vec![
        bytes_per_s.map_or(String::new(), |per_s| {
            format!("sent {:.1} MB/s", per_s / 1e6)
        }),
        format!(
            "waiting {:.1} %",
            100.0 * waited / (waited + trained as f64).max(1.0)
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::METERS;

    /// A solver and a streamer with counters as large as they get, and a test's result or none.
    fn slots(accuracy: f32) -> Vec<SlotInfo> {
        let slot = |role| SlotInfo {
            role,
            index: 0,
            pid: 1,
            alive: true,
            started_unix_ns: 0,
            heartbeat_unix_ns: 0,
            meters: [9_999_999_999; METERS],
        };
        let mut solver = slot(Role::Solver);
        solver.meters[SolverMeter::LossBits as usize] = u64::from(0.123f32.to_bits());
        solver.meters[SolverMeter::AccuracyBits as usize] = u64::from(accuracy.to_bits());
        vec![solver, slot(Role::Stream)]
    }

    fn progress(path: Path) -> Progress {
        Progress {
            bar: None,
            line_due: Instant::now(),
            target: 30_000_000,
            path,
            nodes: Nodes::all(2),
            last: None,
            rates: Some([123_456.0, 12_345_678_901.0]),
        }
    }

    #[test]
    fn a_line_fits_80_columns_and_keeps_what_matters() {
        for path in [Path::Stream, Path::Poseidon] {
            let mut parts = vec![count(12_345_678, 30_000_000)];
            parts.extend(progress(path).parts(&slots(0.9876)));
            let line = fit(&parts, 80);
            assert!(line.chars().count() <= 80, "{line}");
            for word in ["12345678/30000000", "loss 0.123", "accuracy 98.8 %", "it/s"] {
                assert!(line.contains(word), "{line}");
            }
            assert_eq!(iterations_of(&line), Some(12_345_678));
        }
        let endless = fit(&[count(284, 0), "loss 0.123".to_owned()], 80);
        assert_eq!(iterations_of(&endless), Some(284));
        for other in [
            "waiting for node 1",
            "1/2",
            "1/x  y",
            "a/2 b",
            "284 it/s",
            "[INFO] 1/2",
        ] {
            assert_eq!(iterations_of(other), None, "{other}");
        }
    }

    #[test]
    fn no_accuracy_is_said_before_a_test_and_no_target_where_there_is_none() {
        let line = progress(Path::Stream).parts(&slots(0.0)).join("  ");
        assert!(
            !line.contains("accuracy") && line.contains("loss"),
            "{line}"
        );
        assert_eq!(count(284, 0), "284 iterations");
        assert_eq!(count(284, 3000), "284/3000");
    }

    #[test]
    fn what_is_too_wide_is_cut_visibly() {
        assert_eq!(cut("waiting for node 1", 11), "waiting fo…");
        assert_eq!(cut("waiting", 7), "waiting");
    }
}
