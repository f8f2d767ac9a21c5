//! What a report is made of: an experiment, what was varied and compared in it, and its runs.

use dogwild::solver::near;
use serde::{Deserialize, Serialize};

use super::summary::{FIGURES, Known};
use crate::results::Run;

/// All of a study.
#[derive(Clone, Debug)]
pub(crate) struct Study {
    pub(crate) title: String,
    pub(crate) question: Option<String>,
    /// How it was run, in words: `sim` and what that is.
    pub(crate) engine: String,
    pub(crate) paper: Option<Paper>,
    /// Share of right answers whose time is told.
    pub(crate) target: Option<f64>,
    /// What is drawn over the first axis, in addition to accuracy and time.
    pub(crate) figures: Vec<Quantity>,
    /// What was varied, as the file names it (`link.loss`); the first is the x axis.
    pub(crate) axes: Vec<String>,
    /// What was compared; one without a name if nothing was.
    pub(crate) ways: Vec<String>,
    /// In the order of the file; each way has one for each combination of values, but for those
    /// ways that fix what is varied: they have one for all (`at` is empty).
    pub(crate) cells: Vec<CellRuns>,
    /// The experiment file.
    pub(crate) source: String,
    /// What ran where: version, commit, command, machine.
    pub(crate) provenance: Vec<(String, String)>,
}

/// The runs of one cell.
#[derive(Clone, Debug)]
pub(crate) struct CellRuns {
    /// Its name: a folder.
    pub(crate) id: String,
    /// Which of the ways.
    pub(crate) way: usize,
    /// Its value on each axis.
    pub(crate) at: Vec<AxisValue>,
    /// The seeds that it is to have.
    pub(crate) seeds: Vec<u64>,
    /// The runs that there are.
    pub(crate) runs: Vec<Run>,
}

/// A value of what is varied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AxisValue {
    /// As the file writes it.
    pub(crate) label: String,
    /// As a number, where it is one.
    pub(crate) number: Option<f64>,
}

/// The figure of a paper that the experiment belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paper {
    /// Authors, year and title.
    pub(crate) source: String,
    /// Which figure or table.
    pub(crate) figure: String,
    /// What it says, in words.
    pub(crate) says: String,
    /// What differs here on purpose.
    pub(crate) differs: Option<String>,
    /// Values of theirs to be drawn with ours.
    #[serde(default)]
    pub(crate) points: Vec<TheirPoint>,
}

/// One value of a paper's figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TheirPoint {
    /// Which figure of the report it belongs to.
    pub(crate) of: Quantity,
    /// Value on the first axis.
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Which of their ways, if they compare some.
    pub(crate) way: Option<String>,
}

/// What a figure over the varied thing shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Quantity {
    /// Share of right answers at the end, 0 to 1.
    FinalAccuracy,
    /// Seconds to the target.
    SecondsToTarget,
    /// Times as fast to the target as the cell with the least x of the same way.
    Speedup,
    /// One of the measured figures.
    Of(&'static Known),
}

/// Names of those that are no measured figures.
const NAMED: [(&str, Quantity); 3] = [
    ("final-accuracy", Quantity::FinalAccuracy),
    ("seconds-to-target", Quantity::SecondsToTarget),
    ("speedup", Quantity::Speedup),
];

impl TryFrom<String> for Quantity {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let figures = FIGURES.iter().map(|known| (known.name, Self::Of(known)));
        let all: Vec<(&str, Self)> = NAMED.into_iter().chain(figures).collect();
        match all.iter().find(|one| one.0 == name) {
            Some((_, quantity)) => Ok(*quantity),
            None => {
                let names: Vec<&str> = all.iter().map(|one| one.0).collect();
                let hint = near::hint(&name, names.iter().copied());
                Err(format!(
                    "`{name}` is not a figure{hint}; there are {}",
                    names.join(", ")
                ))
            }
        }
    }
}

impl Quantity {
    /// The measured figure, if it is one.
    pub(crate) fn known(self) -> Option<&'static Known> {
        match self {
            Self::Of(known) => Some(known),
            _ => None,
        }
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        let named = NAMED.iter().find(|one| one.1 == quantity);
        match (quantity, named) {
            (Quantity::Of(known), _) => known.name.to_owned(),
            (_, Some((name, _))) => (*name).to_owned(),
            (_, None) => Self::new(),
        }
    }
}
