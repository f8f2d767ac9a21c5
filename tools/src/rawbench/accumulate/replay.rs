//! Devices that spend recorded times and give gradients of the recorded sizes.
//!
//! A thread per device sleeps through its layers, its clock going on while gradients are given, as
//! a GPU's would; another adds. Gradients are zeros: adding and copying take as long as with
//! others.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use dogwild::accumulate::{Accumulate, AccumulateError, LayerRange, Order, join_small};
use dogwild::device::{Device, DeviceError, Stream as _};
use dogwild::node::cpu_ns;
use dogwild::poseidon::Recording;
use hdrhistogram::Histogram;

/// Iterations before those that are measured: memory is touched for the first time there.
const WARM_UP: u32 = 2;
/// Longest wait that is told apart.
const WAIT_NS_MAX: u64 = 3_600_000_000_000;

/// When devices give their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Never: each trains alone.
    Never,
    /// Each layer's when its backward pass is done.
    EachLayer,
    /// All when the whole backward pass is done.
    AfterThePass,
}

/// How devices replay a recording: its layers, iterations, and the order of addition.
pub(super) struct Replay<'r> {
    recording: &'r Recording,
    /// What is given: layers, or several in one.
    groups: Vec<LayerRange>,
    /// By layer: the groups that are given when its backward pass is done.
    given_at: Vec<Option<usize>>,
    iterations: u32,
    order: Order,
}

/// What was measured.
pub(super) struct Found {
    /// By device and iteration: from the end of the backward pass until all sums were there.
    pub(super) waits_ns: Histogram<u64>,
    /// Of the slowest device, on average.
    pub(super) iteration_s: f64,
    /// CPU time of this process, and time.
    pub(super) cpu_s: f64,
    pub(super) wall_s: f64,
    /// Share of all cores that this machine kept busy meanwhile, by whatever it did.
    pub(super) machine_busy: f64,
}

/// What one device's thread found.
struct Own {
    waits_ns: Vec<u64>,
    /// Its measured iterations: when they began and ended, and CPU time then.
    span: Range<Instant>,
    cpu_ns: Range<u64>,
    machine: Range<Cores>,
}

/// What all cores have done so far, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Cores {
    all: u64,
    idle: u64,
}

impl Cores {
    fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of /proc/stat: user, nice, system, idle, iowait and others.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks = line.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|ticks| ticks.parse().ok()).collect();
        Self {
            all: ticks.iter().sum(),
            idle: ticks.iter().skip(3).take(2).sum(),
        }
    }

    /// Share of the ticks up to `end` that were not idle.
    fn busy(self, end: Self) -> f64 {
        let all = (end.all - self.all).max(1);
        1.0 - (end.idle - self.idle).min(all) as f64 / all as f64
    }
}

impl<'r> Replay<'r> {
    /// Layers of fewer than `least` floats are given together.
    pub(super) fn new(
        recording: &'r Recording,
        iterations: u32,
        order: Order,
        least: usize,
    ) -> Result<Self> {
        let manifest = recording.manifest()?;
        let layers = recording.plan_layers(&manifest).into_iter();
        let range = |(name, _, tensors): (String, _, Vec<dogwild::poseidon::PlanTensor>)| {
            let first = tensors.first().map_or(0, |t| t.offset);
            let end = tensors.last().map_or(0, |t| t.offset + t.len);
            LayerRange {
                name,
                range: first..end,
            }
        };
        let layers: Vec<LayerRange> = layers.map(range).collect();
        let floats = layers.iter().map(|layer| layer.range.len()).enumerate();
        let mut joined = join_small(floats.rev(), least);
        // Each from its first layer on, the first one first.
        joined.reverse();
        joined.iter_mut().for_each(|group| group.reverse());
        let mut given_at = vec![None; layers.len()];
        let mut groups = Vec::new();
        for group in joined {
            let (first, last) = (&layers[group[0]], &layers[group[group.len() - 1]]);
            given_at[group[0]] = Some(groups.len());
            groups.push(LayerRange {
                name: match group.len() {
                    1 => first.name.clone(),
                    _ => format!("{} to {}", first.name, last.name),
                },
                range: first.range.start..last.range.end,
            });
        }
        Ok(Self {
            recording,
            groups,
            given_at,
            iterations,
            order,
        })
    }

    /// Copies of one device's gradients in an iteration.
    pub(super) fn copies(&self) -> usize {
        self.groups.len()
    }

    /// Lets `devices` train.
    pub(super) fn run<D: Device>(&self, devices: &[D], when: When) -> Result<Found> {
        let len = self.groups.iter().map(|l| l.range.end).max().unwrap_or(0);
        let given = devices.iter().map(|device| {
            let memory = device.alloc(len)?;
            Ok((device.clone(), memory))
        });
        let given: Vec<_> = given.collect::<Result<_, DeviceError>>()?;
        let nothing = Box::new(|_, _, _, _: &D::Stream| Ok(()));
        let accumulate = Accumulate::new(&self.groups, given, self.order, nothing)?;
        let accumulate = &accumulate;
        let found = std::thread::scope(|scope| {
            let adding = (0..devices.len()).map(|d| scope.spawn(move || accumulate.work(d)));
            let adding: Vec<_> = adding.collect();
            let all = devices.iter().enumerate().map(|(index, device)| {
                scope.spawn(move || {
                    let watch = accumulate.watch(index);
                    let own = self.device(index, device, accumulate, when);
                    if let Err(error) = &own {
                        accumulate.fail(index, format!("{error:#}"));
                    }
                    watch.done();
                    own
                })
            });
            let all: Vec<_> = all.collect();
            let panicked = |_| Err(anyhow!("a device's thread panicked; see its message above"));
            let found: Vec<_> = all
                .into_iter()
                .map(|device| device.join().unwrap_or_else(panicked))
                .collect();
            accumulate.close();
            for thread in adding {
                let ended: Result<(), AccumulateError> = thread
                    .join()
                    .map_err(|_| anyhow!("a thread that adds panicked"))?;
                ended?;
            }
            found.into_iter().collect::<Result<Vec<Own>>>()
        })?;
        self.found(&found)
    }

    fn found(&self, all: &[Own]) -> Result<Found> {
        let mut waits_ns = Histogram::new_with_bounds(1, WAIT_NS_MAX, 3)?;
        let (mut longest, mut cpu_s, mut machine_busy) = (Duration::ZERO, 0.0, 0.0);
        for own in all {
            own.waits_ns
                .iter()
                .for_each(|ns| waits_ns.saturating_record(*ns));
            let took = own.span.end - own.span.start;
            if took > longest {
                longest = took;
                cpu_s = (own.cpu_ns.end - own.cpu_ns.start) as f64 / 1e9;
                machine_busy = own.machine.start.busy(own.machine.end);
            }
        }
        Ok(Found {
            waits_ns,
            iteration_s: longest.as_secs_f64() / f64::from(self.iterations),
            cpu_s,
            wall_s: longest.as_secs_f64(),
            machine_busy,
        })
    }

    /// One device's training.
    fn device<D: Device>(
        &self,
        index: usize,
        device: &D,
        accumulate: &Accumulate<D>,
        when: When,
    ) -> Result<Own> {
        let compute = device.stream()?;
        let give = |group: usize, clock: u32| -> Result<()> {
            let ready = compute.record()?;
            Ok(accumulate.give(index, group, clock.into(), &ready)?)
        };
        let mut waits_ns = Vec::new();
        let mut span = Instant::now()..Instant::now();
        let mut cpu = cpu_ns()..0;
        let mut machine = Cores::now()..Cores::default();
        for t in 0..WARM_UP + self.iterations {
            if t == WARM_UP {
                span.start = Instant::now();
                cpu.start = cpu_ns();
                machine.start = Cores::now();
            }
            let mut at = Instant::now();
            let mut spend = |time| {
                at += time;
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
            };
            let layers = self.recording.layers.iter().enumerate();
            layers.clone().for_each(|(_, layer)| spend(layer.forward()));
            for (number, layer) in layers.rev() {
                spend(layer.backward());
                if let Some(group) = self.given_at[number].filter(|_| when == When::EachLayer) {
                    give(group, t)?;
                }
            }
            let passed = Instant::now();
            if when == When::AfterThePass {
                for group in (0..self.groups.len()).rev() {
                    give(group, t)?;
                }
            }
            accumulate.wait(index)?;
            if t >= WARM_UP {
                waits_ns.push(passed.elapsed().as_nanos() as u64);
            }
        }
        span.end = Instant::now();
        cpu.end = cpu_ns();
        machine.end = Cores::now();
        Ok(Own {
            waits_ns,
            span,
            cpu_ns: cpu,
            machine,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        let start = Cores::parse("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2 3\n");
        let end = Cores::parse("cpu  20 0 30 80 10 0 0 0 0 0\n");
        assert!((start.busy(end) - 0.75).abs() < 1e-9);
        assert_eq!(Cores::default().busy(Cores::parse("rubbish")), 1.0);
    }
}
