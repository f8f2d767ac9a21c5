//! Waiting for delivery: as long as replicas get nearer to each other, however slow machine and
//! link are.
//!
//! Reads buffers; touches nothing else.

use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild::weights::SharedWeights;

use crate::fleet::Fleet;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time between two lines about a wait that goes on.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// How far replicas are from each other.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Distance {
    /// Weights of any node that are not those of the master of their range.
    weights: u64,
    /// By how much, added up; what is not finite counts as equal to it.
    sum: f64,
}

impl Distance {
    fn is_nearer_than(self, other: Self) -> bool {
        self.weights < other.weights || self.sum < other.sum
    }
}

/// Waits until all replicas are equal, bit for bit. Gives up when they have not got nearer for
/// `patience`, and then gives what lags in words.
///
/// # Errors
/// A streamer has ended.
pub(super) fn wait(fleet: &mut Fleet, patience: Duration) -> Result<Option<String>> {
    let (mut nearest, mut moved) = (None, Instant::now());
    let mut said = Instant::now();
    while !fleet.identical() {
        fleet.check()?;
        let now = total(&fleet.buffers);
        if nearest.is_none_or(|before| now.is_nearer_than(before)) {
            (nearest, moved) = (Some(now), Instant::now());
        }
        if moved.elapsed() > patience {
            return Ok(Some(lags(&fleet.buffers)));
        }
        if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            dogwild_lab::progress!("waiting for delivery: {}", lags(&fleet.buffers));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

/// The weights of which `node` of so many is master, but for the chunk at either end: ranges are
/// cut at whole chunks, of which this end knows nothing.
fn range(weights: usize, nodes: usize, node: usize) -> std::ops::Range<usize> {
    weights * node / nodes..weights * (node + 1) / nodes
}

fn distance(buffers: &[SharedWeights], node: usize, master: usize) -> Distance {
    let (own, other) = (buffers[node].view(), buffers[master].view());
    let mut distance = Distance {
        weights: 0,
        sum: 0.0,
    };
    for i in range(buffers[0].used(), buffers.len(), master) {
        let (a, b) = (own.load(i), other.load(i));
        if a.to_bits() != b.to_bits() {
            distance.weights += 1;
            let difference = (f64::from(a) - f64::from(b)).abs();
            distance.sum += if difference.is_finite() {
                difference
            } else {
                0.0
            };
        }
    }
    distance
}

fn pairs(nodes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..nodes).flat_map(move |node| {
        let masters = (0..nodes).filter(move |master| *master != node);
        masters.map(move |master| (node, master))
    })
}

fn total(buffers: &[SharedWeights]) -> Distance {
    let zero = Distance {
        weights: 0,
        sum: 0.0,
    };
    pairs(buffers.len()).fold(zero, |sum, (node, master)| {
        let one = distance(buffers, node, master);
        Distance {
            weights: sum.weights + one.weights,
            sum: sum.sum + one.sum,
        }
    })
}

/// Which node lacks how much of which range.
fn lags(buffers: &[SharedWeights]) -> String {
    let lacking = pairs(buffers.len()).filter_map(|(node, master)| {
        let found = distance(buffers, node, master).weights;
        let all = range(buffers[0].used(), buffers.len(), master).len();
        (found > 0).then(|| {
            format!("node {node} differs in {found} of the {all} weights that node {master} is master of")
        })
    });
    let mut lacking: Vec<String> = lacking.collect();
    let more = lacking.len().saturating_sub(4);
    lacking.truncate(4);
    if more > 0 {
        lacking.push(format!("{more} more pairs of nodes differ"));
    }
    if lacking.is_empty() {
        // Between the last comparison and this one.
        return "nothing any more".into();
    }
    lacking.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_weights_once() {
        for (weights, nodes) in [(10, 3), (431_080, 2), (1, 4)] {
            let mut next = 0;
            for node in 0..nodes {
                let range = range(weights, nodes, node);
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, weights);
        }
    }

    #[test]
    fn nearer_is_fewer_or_less() {
        let at = |weights, sum| Distance { weights, sum };
        assert!(at(9, 5.0).is_nearer_than(at(10, 5.0)));
        assert!(at(10, 4.0).is_nearer_than(at(10, 5.0)));
        assert!(!at(10, 5.0).is_nearer_than(at(10, 5.0)));
        assert!(!at(11, 5.5).is_nearer_than(at(10, 5.0)));
    }
}
