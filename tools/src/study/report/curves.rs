//! The figures over the course of training.
//!
//! Invariant: a line is the median over the seeds at the same test. It goes on while half of the
//! runs do, so that the few slowest do not stand for all.

use super::figures::Figure;
use super::ink::Look;
use super::input::{CellRuns, Study};
use super::plot::{Dot, Join, Line, Plot};
use super::scale::Scale;
use super::spread::Spread;
use crate::results::{Ended, Point};

/// Tests that a line has at most; the others are in the file of the points.
const MOST_DOTS: usize = 100;

/// What a curve shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OverSamples,
    OverSeconds,
    OverBytes,
    Loss,
}

/// The cells of a figure with the names of their lines.
struct Group<'a> {
    title: String,
    lines: Vec<(String, Look, &'a CellRuns)>,
}

/// All curves, those of the same cells one after the other.
pub(crate) fn curves(study: &Study) -> Vec<Figure> {
    let with_bytes = study
        .cells
        .iter()
        .flat_map(|cell| &cell.runs)
        .flat_map(|run| &run.points);
    let mut kinds = vec![Kind::OverSamples, Kind::OverSeconds];
    if with_bytes.clone().all(|point| point.bytes.is_some()) {
        kinds.push(Kind::OverBytes);
    }
    // One node sends nothing.
    let drawn = |group: &Group<'_>, kind: &Kind| *kind != Kind::OverBytes || group.most_bytes() > 0;
    if with_bytes
        .clone()
        .any(|point| point.loss.is_some_and(f64::is_finite))
    {
        kinds.push(Kind::Loss);
    }
    if with_bytes.clone().next().is_none() {
        return Vec::new();
    }
    let all = groups(study).into_iter();
    all.flat_map(|group| {
        let kinds = kinds.iter().filter(|kind| drawn(&group, kind));
        let figures = kinds.map(|kind| kind.figure(study, &group));
        figures.collect::<Vec<_>>()
    })
    .collect()
}

/// Which cells are drawn together.
fn groups(study: &Study) -> Vec<Group<'_>> {
    let varied = |cell: &&CellRuns| !study.is_reference(cell);
    let mut ways: Vec<usize> = study
        .cells
        .iter()
        .filter(varied)
        .map(|cell| cell.way)
        .collect();
    ways.sort_unstable();
    ways.dedup();
    // One way alone: the values of the first axis are what is to be compared.
    let by_value = ways.len() == 1 && !study.axes.is_empty();
    let values = study.values(0);
    let from = usize::from(by_value);
    let mut groups = Vec::new();
    for rest in study.combinations(from) {
        let cells = study.cells.iter().filter(varied);
        let cells = cells.filter(|cell| cell.at.get(from..).unwrap_or(&[]) == rest);
        let mut lines: Vec<_> = cells
            .map(|cell| {
                let index = values
                    .iter()
                    .position(|value| Some(value) == cell.at.first());
                match index.filter(|_| by_value) {
                    Some(index) => (study.named(0, &cell.at[..1]), Look::Ours(index), cell),
                    None => (study.way(cell.way).to_owned(), Look::Ours(cell.way), cell),
                }
            })
            .collect();
        lines.sort_by_key(|line| line.1.number());
        let references = study.cells.iter().filter(|cell| study.is_reference(cell));
        for (i, cell) in references.enumerate() {
            let number = if by_value { values.len() + i } else { cell.way };
            lines.push((study.way(cell.way).to_owned(), Look::Ours(number), cell));
        }
        groups.push(Group {
            title: study.named(from, rest),
            lines,
        });
    }
    // All cells are references.
    if groups.is_empty() && !study.cells.is_empty() {
        let lines = study.cells.iter();
        let lines = lines.map(|cell| (study.way(cell.way).to_owned(), Look::Ours(cell.way), cell));
        groups.push(Group {
            title: String::new(),
            lines: lines.collect(),
        });
    }
    groups
}

impl Group<'_> {
    fn most_bytes(&self) -> u64 {
        let runs = self.lines.iter().flat_map(|line| &line.2.runs);
        let most = runs.filter_map(|run| run.points.last()?.bytes).max();
        most.unwrap_or(0)
    }
}

impl Kind {
    fn figure(self, study: &Study, group: &Group<'_>) -> Figure {
        let (unit, factor) = match group.most_bytes() {
            10_000_000_000.. => ("GB", 1e-9),
            _ => ("MB", 1e-6),
        };
        let mut caption = Vec::new();
        let lines: Vec<Line> = group
            .lines
            .iter()
            .map(|(name, look, cell)| {
                caption.extend(ends(study, cell));
                let dots = match self {
                    Self::OverBytes if sends_nothing(cell) => Vec::new(),
                    _ => self.dots(cell, factor),
                };
                Line {
                    name: name.clone(),
                    look: *look,
                    dots,
                    absent: Vec::new(),
                }
            })
            .filter(|line| !line.is_empty())
            .collect();
        let dots = || lines.iter().flat_map(|line| line.dots.iter().flatten());
        let label = match self {
            Self::OverSamples | Self::Loss => "samples".to_owned(),
            Self::OverSeconds => "seconds of training".to_owned(),
            Self::OverBytes => format!("{unit} sent by all nodes"),
        };
        let x = Scale::even(&label, dots().map(|dot| dot.x).chain([0.0]));
        let ys: Vec<f64> = dots().flat_map(|dot| [dot.least, dot.most]).collect();
        let y = match self {
            Self::Loss => Scale::amount("training loss", ys.into_iter()),
            _ => Scale::even("accuracy, %", ys.into_iter()),
        };
        let title = match group.title.as_str() {
            "" => self.title().to_owned(),
            at => format!("{}, {at}", self.title()),
        };
        let plot = Plot {
            x,
            y,
            join: Join::Curve,
            lines,
            levels: Vec::new(),
        };
        Figure {
            title,
            caption,
            plot,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::OverSamples => "Accuracy over samples",
            Self::OverSeconds => "Accuracy over seconds",
            Self::OverBytes => "Accuracy over bytes sent",
            Self::Loss => "Training loss over samples",
        }
    }

    fn dots(self, cell: &CellRuns, factor: f64) -> Vec<Option<Dot>> {
        let tests = cell
            .runs
            .iter()
            .map(|run| run.points.len())
            .max()
            .unwrap_or(0);
        let with = |index: usize| {
            cell.runs
                .iter()
                .filter_map(move |run| run.points.get(index))
        };
        let half = |index: &usize| 2 * with(*index).count() >= cell.runs.len();
        let all: Vec<usize> = (0..tests).take_while(half).collect();
        let every = all.len().div_ceil(MOST_DOTS).max(1);
        // The last is never left out.
        let kept = all.iter().rev().step_by(every).rev();
        kept.map(|index| {
            let x = Spread::of(with(*index).filter_map(|point| self.x(point, factor)))?;
            let y = Spread::of(with(*index).filter_map(|point| self.y(point)))?;
            let (least, most) = (y.least, y.most);
            Some(Dot {
                x: x.median,
                y: y.median,
                least,
                most,
                remark: None,
            })
        })
        .collect()
    }

    fn x(self, point: &Point, factor: f64) -> Option<f64> {
        match self {
            Self::OverSamples | Self::Loss => Some(point.samples as f64),
            Self::OverSeconds => Some(point.seconds),
            Self::OverBytes => Some(point.bytes? as f64 * factor),
        }
    }

    fn y(self, point: &Point) -> Option<f64> {
        match self {
            Self::Loss => point.loss,
            _ => Some(point.accuracy * 100.0),
        }
    }
}

fn sends_nothing(cell: &CellRuns) -> bool {
    let mut points = cell.runs.iter().flat_map(|run| &run.points);
    points.all(|point| point.bytes == Some(0))
}

/// What a reader has to know of the runs that did not go to the end.
fn ends(study: &Study, cell: &CellRuns) -> Option<String> {
    let all = cell.runs.len();
    let count = |end: Ended| cell.runs.iter().filter(|run| run.ended == end).count();
    let place = study.place(cell);
    match (all, count(Ended::Diverged), count(Ended::Target)) {
        (0, _, _) => Some(format!("{place}: no run has been made.")),
        (_, 0, 0) => None,
        (_, 0, stopped) => Some(format!(
            "{place}: {stopped} of {all} stopped at the target."
        )),
        (_, diverged, _) => Some(format!(
            "{place}: {diverged} of {all} diverged; they count up to there."
        )),
    }
}
