//! What came of a cell's runs, and which cells belong together.
//!
//! Invariant: a run that is missing, that diverged or that did not reach the target is counted;
//! none is left out in silence.

use super::input::{AxisValue, CellRuns, Study};
use super::spread::Spread;
use crate::results::{Ended, Figures, Point, Run};

/// One of the measured figures.
#[derive(Debug)]
pub(crate) struct Known {
    /// As the files name it.
    pub(crate) name: &'static str,
    /// As the tables name it, with its unit.
    pub(crate) title: &'static str,
    /// From the unit of the files to that of the tables.
    pub(crate) factor: f64,
    pub(crate) get: fn(&Figures) -> Option<f64>,
}

impl Known {
    /// The title without its unit, as a heading.
    pub(crate) fn heading(&self) -> String {
        let words = self.title.split(',').next().unwrap_or_default();
        let mut letters = words.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect()
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

macro_rules! known {
    ($($name:ident, $title:literal, $factor:literal;)*) => {
        [$(Known {
            name: stringify!($name),
            title: $title,
            factor: $factor,
            get: |figures| figures.$name,
        }),*]
    };
}

/// All of them, in the order of their tables.
pub(crate) static FIGURES: [Known; 17] = known! {
    age_s_p50, "age p50, ms", 1e3;
    age_s_p90, "age p90, ms", 1e3;
    age_s_p99, "age p99, ms", 1e3;
    age_steps_p50, "age p50, steps", 1.0;
    age_steps_p99, "age p99, steps", 1.0;
    sent_bytes_per_s, "sent, MB/s", 1e-6;
    goodput_bytes_per_s, "goodput, MB/s", 1e-6;
    frames_lost, "frames lost, %", 100.0;
    mass_late, "gradient mass late, %", 100.0;
    mass_lost, "gradient mass lost, %", 100.0;
    utilisation, "solvers busy, %", 100.0;
    stride, "mean stride", 1.0;
    halvings, "halvings", 1.0;
    samples_per_s, "samples/s", 1.0;
    times_one_node, "times one node", 1.0;
    imbalance, "busiest node over mean", 1.0;
    wait_us_p50, "waiting p50, ms", 1e-3;
};

/// What came of a cell.
pub(crate) struct Summary<'a> {
    pub(crate) cell: &'a CellRuns,
    /// Seeds without a run.
    pub(crate) missing: Vec<u64>,
    pub(crate) diverged: usize,
    /// Share of right answers at the end, of those that did not diverge.
    pub(crate) accuracy: Option<Spread>,
    /// Of those that reached the target.
    pub(crate) seconds: Option<Spread>,
    pub(crate) iterations: Option<Spread>,
    pub(crate) samples: Option<Spread>,
    pub(crate) bytes: Option<Spread>,
    /// How many did.
    pub(crate) reached: usize,
}

impl<'a> Summary<'a> {
    pub(crate) fn of(cell: &'a CellRuns, target: Option<f64>) -> Self {
        let missing = cell.seeds.iter().copied();
        let missing = missing.filter(|seed| cell.runs.iter().all(|run| run.seed != *seed));
        let diverged = cell.runs.iter().filter(|run| run.ended == Ended::Diverged);
        let reached: Vec<&Point> = cell
            .runs
            .iter()
            .filter_map(|run| run.reached(target?))
            .collect();
        let of = |get: fn(&Point) -> f64| Spread::of(reached.iter().map(|point| get(point)));
        let bytes = reached.iter().filter_map(|point| point.bytes);
        Self {
            cell,
            missing: missing.collect(),
            diverged: diverged.count(),
            accuracy: Spread::of(cell.runs.iter().filter_map(Run::final_accuracy)),
            seconds: of(|point| point.seconds),
            iterations: of(|point| point.iterations as f64),
            samples: of(|point| point.samples as f64),
            bytes: Spread::of(bytes.map(|bytes| bytes as f64)),
            reached: reached.len(),
        }
    }

    /// The spread of one of the figures, in the unit of the files.
    pub(crate) fn figure(&self, known: &Known) -> Option<Spread> {
        Spread::of(
            self.cell
                .runs
                .iter()
                .filter_map(|run| (known.get)(&run.figures)),
        )
    }
}

impl Study {
    pub(crate) fn summaries(&self) -> Vec<Summary<'_>> {
        self.cells
            .iter()
            .map(|cell| Summary::of(cell, self.target))
            .collect()
    }

    /// Whether any run has tests; programs may tell figures only.
    pub(crate) fn has_tests(&self) -> bool {
        let mut runs = self.cells.iter().flat_map(|cell| &cell.runs);
        runs.any(|run| !run.points.is_empty())
    }

    /// A way's name; one for that which has none.
    pub(crate) fn way(&self, way: usize) -> &str {
        match self.ways.get(way).map(String::as_str) {
            None | Some("") => "this study",
            Some(name) => name,
        }
    }

    /// Whether ways are worth a column.
    pub(crate) fn compares(&self) -> bool {
        self.ways.len() > 1 || self.ways.iter().any(|way| !way.is_empty())
    }

    /// Whether a cell stands for all values of what is varied.
    pub(crate) fn is_reference(&self, cell: &CellRuns) -> bool {
        cell.at.is_empty() && !self.axes.is_empty()
    }

    /// The values of an axis: numbers by their size, others as they come.
    pub(crate) fn values(&self, axis: usize) -> Vec<AxisValue> {
        let mut all: Vec<AxisValue> = Vec::new();
        for value in self.cells.iter().filter_map(|cell| cell.at.get(axis)) {
            if !all.contains(value) {
                all.push(value.clone());
            }
        }
        if all.iter().all(|value| value.number.is_some()) {
            let number = |value: &AxisValue| value.number.unwrap_or(0.0);
            all.sort_by(|a, b| number(a).total_cmp(&number(b)));
        }
        all
    }

    /// The combinations of the values from that axis on, in the order of the file.
    pub(crate) fn combinations(&self, from: usize) -> Vec<&[AxisValue]> {
        let mut all: Vec<&[AxisValue]> = Vec::new();
        for cell in self.cells.iter().filter(|cell| !self.is_reference(cell)) {
            let rest = cell.at.get(from..).unwrap_or(&[]);
            if !all.contains(&rest) {
                all.push(rest);
            }
        }
        all
    }

    /// Values with the names of their axes, from that axis on: `loss = 0.1, delay = 5 ms`.
    pub(crate) fn named(&self, from: usize, values: &[AxisValue]) -> String {
        let axes = self.axes.iter().skip(from);
        let pairs = axes
            .zip(values)
            .map(|(axis, value)| format!("{axis} = {}", value.label));
        pairs.collect::<Vec<_>>().join(", ")
    }

    /// A cell in words.
    pub(crate) fn place(&self, cell: &CellRuns) -> String {
        let at = self.named(0, &cell.at);
        match (self.compares(), at.is_empty()) {
            (true, true) => self.way(cell.way).to_owned(),
            (true, false) => format!("{}, {at}", self.way(cell.way)),
            (false, true) => cell.id.clone(),
            (false, false) => at,
        }
    }
}
