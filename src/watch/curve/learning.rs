//! The picture of a training run: test error and training loss, over iterations and over seconds.

use std::collections::BTreeMap;

use super::axis::Axis;
use super::picture::{Curve, Panel, Series};
use super::rows::CurveRow;

impl Curve {
    /// Test error and training loss on logarithmic axes, over iterations and over seconds; one line
    /// for each solver of `rows`.
    pub fn learning(title: &str, rows: &[CurveRow]) -> Self {
        let error = |row: &CurveRow| row.test_accuracy.map(|share| 100.0 * (1.0 - share));
        let loss = |row: &CurveRow| row.loss;
        let iterations = |row: &CurveRow| row.iteration as f64;
        let seconds = |row: &CurveRow| row.seconds;
        let panels = vec![
            panel(
                rows,
                ("iterations", &iterations),
                ("test error (%)", &error),
            ),
            panel(rows, ("seconds", &seconds), ("test error (%)", &error)),
            panel(rows, ("iterations", &iterations), ("training loss", &loss)),
            panel(rows, ("seconds", &seconds), ("training loss", &loss)),
        ];
        Self {
            title: title.to_owned(),
            panels,
        }
    }
}

/// What an axis is, and its value in a row.
type X<'a> = (&'a str, &'a dyn Fn(&CurveRow) -> f64);
type Y<'a> = (&'a str, &'a dyn Fn(&CurveRow) -> Option<f64>);

fn panel(rows: &[CurveRow], x: X<'_>, y: Y<'_>) -> Panel {
    // A solver without a value still has its place, so that it has the same colour in all panels.
    let mut lines: BTreeMap<(u16, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        let line = lines.entry((row.node, row.solver)).or_default();
        line.extend((y.1)(row).map(|y| ((x.1)(row), y)));
    }
    let several = lines.keys().any(|&(_, solver)| solver > 0);
    let name = |(node, solver)| {
        if several {
            format!("node {node}, solver {solver}")
        } else {
            format!("node {node}")
        }
    };
    let series = lines.into_iter().map(|(key, points)| Series {
        name: name(key),
        points,
    });
    Panel {
        series: series.collect(),
        x_label: x.0.to_owned(),
        x_axis: Axis::Even,
        y_label: y.0.to_owned(),
        y_axis: Axis::Log,
    }
}
