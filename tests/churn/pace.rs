//! How solvers keep their pace: when each step was made, and what that says of the time in which
//! other nodes were in trouble.
//!
//! A thread looks at the counters of all buffers. Figures are reported, never asserted: a busy
//! machine makes its own.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::support::job::iterations;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A node is not judged for so long after its first step since it came back, s.
const SETTLED_S: f64 = 1.0;
/// What others feel of an event they feel within this time, s.
const FELT_S: f64 = 2.0;
/// A step that comes later than usual by more than this is late, s.
const LATE_S: f64 = 0.1;

/// The steps that were seen of a node: when, and how many since the last look.
type Steps = Vec<(f64, u64)>;

/// Looks at the counters until it is dropped.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Steps>>>,
}

impl Sampler {
    pub(crate) fn start(buffers: Vec<PathBuf>, began: Instant) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let look = move || {
            let mut seen = vec![Steps::new(); buffers.len()];
            let mut last: Vec<u64> = vec![0; buffers.len()];
            while !told.load(Relaxed) {
                let now = began.elapsed().as_secs_f64();
                for (node, buffer) in buffers.iter().enumerate() {
                    let count = iterations(buffer);
                    // A new buffer counts from 0.
                    if count > last[node] {
                        seen[node].push((now, count - last[node]));
                    }
                    last[node] = count;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            seen
        };
        Self {
            stop,
            thread: Some(std::thread::spawn(look)),
        }
    }

    /// Ends it.
    pub(crate) fn steps(mut self) -> Vec<Steps> {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().expect("only this takes it");
        thread.join().expect("a thread that only looks")
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Steps of nodes that were well, with those that were late.
#[derive(Default)]
struct Kept {
    gaps_s: Vec<f64>,
    late: usize,
}

impl Kept {
    fn line(&mut self, name: &str) -> String {
        self.gaps_s.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = self.gaps_s.len().saturating_sub(1);
            let at = (share * last as f64) as usize;
            1e3 * self.gaps_s.get(at).copied().unwrap_or(0.0)
        };
        let count = self.gaps_s.len();
        format!(
            "{name}: {count} steps, {:.2} % late by more than 100 ms; ms between two: median {:.0}, \
             99 % {:.0}, longest {:.0}",
            100.0 * self.late as f64 / count.max(1) as f64,
            at(0.5),
            at(0.99),
            at(1.0)
        )
    }
}

/// What became of the pace, in words. `events`: when a node got into trouble (true) or out of it.
pub(crate) fn told(steps: &[Steps], events: &[(f64, u16, bool)], from: f64, to: f64) -> String {
    let mut gaps: Vec<f64> = steps.iter().flat_map(gaps_of).map(|(_, gap)| gap).collect();
    gaps.sort_by(f64::total_cmp);
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0);
    let (mut felt, mut calm) = (Kept::default(), Kept::default());
    let mut rates = [1.0, 5.0].map(|window| (window, Vec::new()));
    for (node, steps) in (0..).zip(steps) {
        let well = |begin: f64, end: f64| is_well(events, node, begin, end);
        for (at, gap) in gaps_of(steps) {
            if at - gap < from || at > to || !well(at - gap, at) {
                continue;
            }
            let near = |(when, other, _): &(f64, u16, bool)| {
                *other != node && (at - gap - FELT_S..at).contains(when)
            };
            let kept = if events.iter().any(near) {
                &mut felt
            } else {
                &mut calm
            };
            kept.gaps_s.push(gap);
            kept.late += usize::from(gap > usual + LATE_S);
        }
        for (window, rates) in &mut rates {
            let mut begin = from;
            while begin + *window <= to {
                let within = |(at, _): &&(f64, u64)| (begin..begin + *window).contains(at);
                let made: u64 = steps.iter().filter(within).map(|(_, made)| made).sum();
                if well(begin, begin + *window) {
                    rates.push(made as f64 / *window * usual);
                }
                begin += *window / 2.0;
            }
        }
    }
    let mut told = format!("usual time between two steps {:.0} ms\n", 1e3 * usual);
    let lines = [felt.line("within 2 s after an event"), calm.line("else")];
    for (window, mut rates) in rates {
        rates.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let at = (share * rates.len().saturating_sub(1) as f64) as usize;
            100.0 * rates.get(at).copied().unwrap_or(0.0)
        };
        writeln!(
            told,
            "pace over {window} s, % of the usual: least {:.0}, 1 % {:.0}, 5 % {:.0}, median {:.0} \
             ({} windows)",
            at(0.0),
            at(0.01),
            at(0.05),
            at(0.5),
            rates.len()
        )
        .expect("memory");
    }
    told + &lines.join("\n")
}

/// Each step with the time since the one before.
fn gaps_of(steps: &Steps) -> impl Iterator<Item = (f64, f64)> {
    let pairs = steps.windows(2);
    pairs.map(|pair| (pair[1].0, (pair[1].0 - pair[0].0) / pair[1].1 as f64))
}

/// Whether `node` was in no trouble from `begin` to `end`, and had not just come back.
fn is_well(events: &[(f64, u16, bool)], node: u16, begin: f64, end: f64) -> bool {
    let mut since = None;
    for (at, _, into) in events.iter().filter(|(_, of, _)| *of == node) {
        if *into {
            // Into the next one before it was well again.
            since.get_or_insert(*at);
        } else if let Some(from) = since.take()
            && from < end
            && begin < at + SETTLED_S
        {
            return false;
        }
    }
    since.is_none_or(|from| end < from)
}
