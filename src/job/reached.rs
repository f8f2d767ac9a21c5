//! How long it took to reach an accuracy, from the rows of the learning curve.

use serde::Serialize;

use crate::watch::curve::CurveRow;

/// Shares of right answers that are always reported, per mille.
const LEVELS: [u16; 10] = [500, 800, 900, 950, 970, 980, 985, 990, 995, 999];

/// When an accuracy was first reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// Share of right answers.
    pub accuracy: f64,
    /// True for `--target-accuracy`.
    pub target: bool,
    /// By the first node; none: by no test.
    pub cluster: Option<Reached>,
    /// By each node.
    pub per_node: Vec<Option<Reached>>,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// Iterations of the whole cluster (reliable path: of each worker).
    pub iterations: u64,
    /// Seconds since training began.
    pub seconds: f64,
    /// What was found.
    pub test_accuracy: f64,
}

/// Each level that some test has reached, and `target` in any case, from the lowest.
pub(super) fn levels(rows: &[CurveRow], nodes: u16, target: Option<f32>) -> Vec<Level> {
    // As written: a target of 0.97 is the level 0.97.
    let target = target.and_then(|share| share.to_string().parse::<f64>().ok());
    let mut shares: Vec<f64> = LEVELS.map(|level| f64::from(level) / 1000.0).into();
    shares.extend(target.filter(|target| !shares.contains(target)));
    shares.sort_by(f64::total_cmp);
    let level = |accuracy: f64| {
        let per_node: Vec<_> = (0..nodes).map(|k| first(rows, k, accuracy)).collect();
        let earliest = per_node.iter().flatten().copied();
        Level {
            accuracy,
            target: target == Some(accuracy),
            cluster: earliest.min_by(|a, b| a.seconds.total_cmp(&b.seconds)),
            per_node,
        }
    };
    let levels = shares.into_iter().map(level);
    levels
        .filter(|level| level.target || level.cluster.is_some())
        .collect()
}

/// The first test of a node that found `accuracy` or more.
fn first(rows: &[CurveRow], node: u16, accuracy: f64) -> Option<Reached> {
    // Accuracies are f32 in the tests: 0.98 of them is 0.98000001 or 0.97999999 here.
    let enough = |found: &f64| *found as f32 >= accuracy as f32;
    let reached = rows
        .iter()
        .filter(|row| row.node == node)
        .filter_map(|row| {
            Some(Reached {
                iterations: row.iteration,
                seconds: row.seconds,
                test_accuracy: row.test_accuracy.filter(enough)?,
            })
        });
    reached.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: u16, iteration: u64, seconds: f64, accuracy: f32) -> CurveRow {
        CurveRow {
            node,
            solver: 0,
            iteration,
            seconds,
            loss: None,
            test_loss: None,
            test_accuracy: Some(f64::from(accuracy)),
        }
    }

    #[test]
    fn levels_are_those_of_the_first_test_that_reached_them() {
        let rows = [
            row(0, 0, 0.5, 0.1),
            row(1, 0, 0.4, 0.1),
            row(0, 100, 2.0, 0.85),
            row(1, 110, 1.5, 0.60),
            row(0, 200, 3.0, 0.79),
            row(1, 200, 3.5, 0.98),
        ];
        let found = levels(&rows, 2, Some(0.97));
        let at = |level: f64| found.iter().find(|l| l.accuracy == level).expect("a level");
        let iterations = |r: Option<Reached>| r.map(|r| r.iterations);
        assert_eq!(iterations(at(0.5).cluster), Some(110));
        assert_eq!(iterations(at(0.8).cluster), Some(100));
        assert_eq!(at(0.8).per_node[1].map(|r| r.seconds), Some(3.5));
        assert_eq!((at(0.97).target, at(0.98).target), (true, false));
        assert_eq!(at(0.97).per_node[0], None);
        assert_eq!(iterations(at(0.98).per_node[1]), Some(200));
        assert_eq!(found.len(), 6, "{found:?}");
    }

    #[test]
    fn a_target_that_was_not_reached_is_there() {
        let found = levels(&[row(0, 5, 1.0, 0.2)], 1, Some(0.9999));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].accuracy, found[0].cluster), (0.9999, None));
        assert!(levels(&[], 3, None).is_empty());
    }
}
