//! The end of training: waits until the last deltas and positions have arrived, for as long as it
//! gets nearer.
//!
//! Reads the weights of all nodes and the counters of their streamers, changes nothing. Invariants:
//! it gives up only when nothing has got nearer for [`PATIENCE`]; it takes a fifth of one core at
//! most, so that it does not starve the streamers that it waits for.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::children::LOOK_EVERY;
use crate::node::Stop;
use crate::watch::StreamMeter;
use crate::weights::{Role, SharedWeights, kernels};

/// Longest time without anything getting nearer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Passes of every streamer over its range that change nothing, before it is called hopeless. In
/// int8 a chunk is sent whole in one pass of five, and a rest that is too small to move a weight of
/// its master takes some twelve wholes until it is nothing; the exact values come after that.
const PASSES: u64 = 80;
/// Weights compared at once.
const BLOCK: usize = 4096;

/// What a node lacks of another one's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// Whose replica differs.
    pub(super) node: u16,
    /// From the weights of this node, which masters them.
    pub(super) range: u16,
    /// In so many weights.
    pub(super) weights: usize,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            range,
            weights,
        } = self;
        write!(
            f,
            "node {node} lacks {weights} weights of node {range}'s range"
        )
    }
}

/// How it ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Settled {
    /// Whether all replicas were equal, bit for bit.
    pub(super) identical: bool,
    /// What was missing when it was given up.
    pub(super) lacking: Vec<Lack>,
    /// Nodes whose streamers sent nothing more, and for how long, if that is why.
    pub(super) stuck: Vec<(u16, Duration)>,
    /// Whether a signal came first.
    pub(super) interrupted: bool,
}

impl Settled {
    /// Whether the replicas are equal; `None` if a signal came first.
    pub(super) fn verdict(&self) -> Option<bool> {
        (self.identical || !self.interrupted).then_some(self.identical)
    }
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.identical {
            return f.write_str("all replicas are equal");
        }
        let mut parts: Vec<String> = self.lacking.iter().map(Lack::to_string).collect();
        parts.extend(self.stuck.iter().map(|(node, silent)| {
            format!(
                "the streamer of node {node} has sent no position for {} s",
                silent.as_secs()
            )
        }));
        f.write_str(&parts.join("; "))
    }
}

/// Waits until all replicas are equal, bit for bit. `watch` looks after the streamers meanwhile,
/// and is told what is still missing.
pub(super) fn settle(
    nodes: &[SharedWeights],
    stop: &Stop,
    mut watch: impl FnMut(&[Lack]) -> Result<()>,
) -> Result<Settled> {
    let start = Instant::now();
    let mut patience = Patience::default();
    loop {
        let began = start.elapsed();
        let lacking = differences(nodes);
        if lacking.is_empty() || stop.load(Relaxed) {
            return Ok(Settled {
                identical: lacking.is_empty(),
                interrupted: stop.load(Relaxed),
                ..Settled::default()
            });
        }
        let now = start.elapsed();
        let different = lacking.iter().map(|lack| lack.weights).sum();
        if let Some(stuck) = patience.is_over(now, different, &streamed(nodes)) {
            return Ok(Settled {
                lacking,
                stuck,
                ..Settled::default()
            });
        }
        watch(&lacking)?;
        // Comparing takes memory bandwidth and a core, which streamers need to get nearer.
        let pause = (4 * (now - began)).clamp(LOOK_EVERY, Duration::from_secs(2));
        let end = Instant::now() + pause;
        while Instant::now() < end && !stop.load(Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// What a streamer has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Streamed {
    cycles: u64,
    positions: u64,
}

fn streamed(nodes: &[SharedWeights]) -> Vec<Streamed> {
    // A node that masters nothing sends no positions: its frames and hellos show that it lives.
    let meters = |shared: &SharedWeights| {
        let masters = !shared.globals().own_ranges().is_empty();
        let [cycles, positions] = if masters {
            [StreamMeter::Cycles, StreamMeter::PositionsSent]
        } else {
            [StreamMeter::HellosSent, StreamMeter::FramesSent]
        };
        let slots = shared.slots();
        let slot = slots.into_iter().find(|slot| slot.role == Role::Stream);
        slot.map_or_else(Streamed::default, |slot| Streamed {
            cycles: cycles.of(&slot.meters),
            positions: positions.of(&slot.meters),
        })
    };
    nodes.iter().map(meters).collect()
}

/// When to give up: time, differences and counters are arguments.
#[derive(Debug, Default)]
struct Patience {
    /// The fewest weights that differed, when that was, and the passes of each streamer by then.
    best: Option<(usize, Duration, Vec<u64>)>,
    /// The positions of each streamer, and when they last became more.
    moved: Vec<(u64, Duration)>,
}

impl Patience {
    /// True (with the streamers that stand still) if nothing has got nearer for too long.
    fn is_over(
        &mut self,
        now: Duration,
        different: usize,
        streamed: &[Streamed],
    ) -> Option<Vec<(u16, Duration)>> {
        self.moved.resize(streamed.len(), (0, now));
        for (moved, streamed) in self.moved.iter_mut().zip(streamed) {
            if moved.0 != streamed.positions {
                *moved = (streamed.positions, now);
            }
        }
        let nearer = |(fewest, ..): &(usize, Duration, Vec<u64>)| different < *fewest;
        if self.best.as_ref().is_none_or(nearer) {
            let cycles = streamed.iter().map(|one| one.cycles).collect();
            self.best = Some((different, now, cycles));
        }
        let (_, since, cycles) = self.best.as_ref()?;
        if now.saturating_sub(*since) < PATIENCE {
            return None;
        }
        let stuck: Vec<_> = (0..)
            .zip(&self.moved)
            .map(|(node, (_, moved))| (node, now.saturating_sub(*moved)))
            .filter(|(_, silent)| *silent >= PATIENCE)
            .collect();
        let hopeless = streamed
            .iter()
            .zip(cycles)
            .all(|(now, then)| now.cycles.saturating_sub(*then) >= PASSES);
        (hopeless || !stuck.is_empty()).then_some(stuck)
    }
}

/// True if all replicas are equal, bit for bit.
pub(super) fn identical(nodes: &[SharedWeights]) -> bool {
    differences(nodes).is_empty()
}

/// What each node lacks of each other one's range.
fn differences(nodes: &[SharedWeights]) -> Vec<Lack> {
    let mut all = Vec::new();
    for (range, runs) in (0..).zip(ranges(nodes)) {
        let master = &nodes[usize::from(range)];
        for (node, other) in (0..).zip(nodes) {
            let in_run = |run: &Range<usize>| different(master, other, run.clone());
            let weights = runs.iter().map(in_run).sum();
            if node != range && weights > 0 {
                all.push(Lack {
                    node,
                    range,
                    weights,
                });
            }
        }
    }
    all
}

/// What each node masters, in weights.
fn ranges(nodes: &[SharedWeights]) -> Vec<Vec<Range<usize>>> {
    let own = |shared: &SharedWeights| {
        let (runs, used) = (shared.globals().own_ranges(), shared.used());
        let within = |run: Range<usize>| run.start.min(used)..run.end.min(used);
        runs.into_iter().map(within).collect::<Vec<_>>()
    };
    let mut ranges: Vec<_> = nodes.iter().map(own).collect();
    let mastered: usize = ranges.iter().flatten().map(ExactSizeIterator::len).sum();
    if let (Some(all), Some(first)) = (ranges.first_mut(), nodes.first())
        && mastered != first.used()
    {
        // Not all streamers have come up: what is equal to the first node's weights is equal.
        *all = std::iter::once(0..first.used()).collect();
    }
    ranges
}

/// Weights in which two buffers differ.
fn different(a: &SharedWeights, b: &SharedWeights, range: Range<usize>) -> usize {
    if std::ptr::eq(a, b) {
        return 0;
    }
    let mut bytes = [vec![0; 4 * BLOCK], vec![0; 4 * BLOCK]];
    let mut count = 0;
    for at in range.clone().step_by(BLOCK) {
        let len = BLOCK.min(range.end - at);
        let [a, b] = [(a, 0), (b, 1)].map(|(shared, side)| (shared.view().slice(at, len), side));
        for (view, side) in [a, b] {
            kernels::copy_out_bytes(view, &mut bytes[side][..4 * len]);
        }
        let [left, right] = [&bytes[0][..4 * len], &bytes[1][..4 * len]];
        // The library compares memory as fast as it can be read; words only where something
        // differs.
        if left != right {
            let words = left.chunks_exact(4).zip(right.chunks_exact(4));
            count += words.filter(|(left, right)| left != right).count();
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn both(cycles: u64, positions: u64) -> [Streamed; 2] {
        [Streamed { cycles, positions }; 2]
    }

    #[test]
    fn it_waits_for_as_long_as_it_gets_nearer() {
        let mut patience = Patience::default();
        for minute in 0..60 {
            let left = 1000 - minute as usize;
            // 29 s of nothing at all, then one weight less.
            for s in [0, 29] {
                let seen = both(minute, minute);
                assert_eq!(patience.is_over(at(30 * minute + s), left, &seen), None);
            }
        }
    }

    #[test]
    fn a_streamer_that_stands_still_is_named() {
        let mut patience = Patience::default();
        let seen = |s| {
            let [one, mut two] = both(0, 5);
            two.positions += s;
            [one, two]
        };
        assert_eq!(patience.is_over(at(0), 10, &seen(0)), None);
        for s in 1..30 {
            assert_eq!(patience.is_over(at(s), 10, &seen(s)), None);
        }
        assert_eq!(
            patience.is_over(at(30), 10, &seen(30)),
            Some(vec![(0, at(30))])
        );
    }

    #[test]
    fn a_slow_streamer_gets_its_passes_and_no_more() {
        let mut patience = Patience::default();
        // A pass takes a minute: positions go all the time.
        for s in 0..60 * PASSES {
            assert_eq!(patience.is_over(at(s), 10, &both(s / 60, s)), None, "{s}");
        }
        let end = 60 * PASSES;
        assert_eq!(
            patience.is_over(at(end), 10, &both(PASSES, end)),
            Some(vec![])
        );
    }

    #[test]
    fn what_is_lacking_is_said() {
        let settled = Settled {
            identical: false,
            lacking: vec![Lack {
                node: 2,
                range: 0,
                weights: 352,
            }],
            stuck: vec![(0, at(31))],
            interrupted: false,
        };
        assert_eq!(
            settled.to_string(),
            "node 2 lacks 352 weights of node 0's range; the streamer of node 0 has sent no position for 31 s"
        );
    }
}
