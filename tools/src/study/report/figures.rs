//! The figures over what was varied: x is the first axis, each way is a line.

use super::ink::Look;
use super::input::{AxisValue, Quantity, Study, TheirPoint};
use super::plot::{Dot, Join, Level, Line, Plot};
use super::scale::Scale;
use super::spread::Spread;
use super::summary::Summary;

/// A figure with its words.
pub(crate) struct Figure {
    pub(crate) title: String,
    /// Sentences below it.
    pub(crate) caption: Vec<String>,
    pub(crate) plot: Plot,
}

/// A cell's part of a figure.
struct Told {
    spread: Option<Spread>,
    /// Runs that count, of how many.
    of: (usize, usize),
}

/// All figures over the first axis; none if nothing was varied.
pub(crate) fn over_first_axis(study: &Study, cells: &[Summary<'_>]) -> Vec<Figure> {
    let values = study.values(0);
    if values.len() < 2 || cells.iter().all(|cell| cell.cell.runs.is_empty()) {
        return Vec::new();
    }
    let mut quantities = Vec::new();
    if study.has_tests() {
        quantities.push(Quantity::FinalAccuracy);
    }
    if study.has_tests() && study.target.is_some() {
        quantities.push(Quantity::SecondsToTarget);
        let theirs = study.paper.iter().flat_map(|paper| &paper.points);
        if theirs
            .into_iter()
            .any(|point| point.of == Quantity::Speedup)
        {
            quantities.push(Quantity::Speedup);
        }
    }
    quantities.extend(&study.figures);
    let rests = study.combinations(1);
    let each = quantities
        .into_iter()
        .flat_map(|quantity| rests.iter().map(move |rest| (quantity, *rest)));
    each.map(|(quantity, rest)| {
        Drawn {
            study,
            cells,
            values: &values,
            quantity,
            rest,
        }
        .figure()
    })
    .collect()
}

/// What one figure is made of.
struct Drawn<'a> {
    study: &'a Study,
    cells: &'a [Summary<'a>],
    values: &'a [AxisValue],
    quantity: Quantity,
    /// The values of all axes but the first.
    rest: &'a [AxisValue],
}

impl Drawn<'_> {
    fn figure(&self) -> Figure {
        let mut caption = Vec::new();
        if self.quantity == Quantity::Speedup {
            caption.push(
                "Median seconds of the way's first cell over the seconds of each run.".to_owned(),
            );
        }
        let lines = self.lines(&mut caption);
        caption.extend(self.remarks(&lines));
        let levels = self.levels(&mut caption);
        let of_dots = lines.iter().flat_map(|line| line.dots.iter().flatten());
        let of_levels = levels.iter().flat_map(|level| [level.least, level.most]);
        let y: Vec<f64> = of_dots
            .flat_map(|dot| [dot.least, dot.most])
            .chain(of_levels)
            .collect();
        let (title, unit) = self.quantity.words(self.study);
        let y = match self.quantity {
            Quantity::FinalAccuracy => Scale::even(unit, y.into_iter()),
            _ => Scale::amount(unit, y.into_iter()),
        };
        let rest = self.study.named(1, self.rest);
        Figure {
            title: if rest.is_empty() {
                title
            } else {
                format!("{title}, {rest}")
            },
            caption,
            plot: Plot {
                x: self.x(&lines),
                y,
                join: self.join(),
                lines,
                levels,
            },
        }
    }

    /// Explains what is written at marks.
    fn remarks(&self, lines: &[Line]) -> Vec<String> {
        let what = match self.quantity {
            Quantity::FinalAccuracy => "did not diverge",
            Quantity::SecondsToTarget | Quantity::Speedup => "reached the target",
            Quantity::Of(_) => "know it",
        };
        let ours = lines.iter().filter(|line| line.look != Look::Paper);
        let mut dots = ours.flat_map(|line| line.dots.iter().flatten());
        let few = dots.find_map(|dot| dot.remark.as_ref());
        let few = few.map(|few| format!("{few} at a mark: only so many of the runs {what}."));
        let none = lines.iter().any(|line| !line.absent.is_empty());
        let none =
            none.then(|| format!("A mark at the upper edge is not a number: no run {what}."));
        few.into_iter().chain(none).collect()
    }

    fn is_numeric(&self) -> bool {
        self.values.iter().all(|value| value.number.is_some())
    }

    fn join(&self) -> Join {
        if self.is_numeric() {
            Join::Points
        } else {
            Join::Apart
        }
    }

    /// Where a value stands: a number at itself, a category at its index.
    fn x_of(&self, index: usize) -> f64 {
        match self.values[index].number {
            Some(number) if self.is_numeric() => number,
            _ => index as f64,
        }
    }

    fn x(&self, lines: &[Line]) -> Scale {
        let label = self.study.axes.first().map_or("", String::as_str);
        let ours = self.values.iter().enumerate();
        let ticks: Vec<(f64, String)> = ours
            .map(|(i, value)| (self.x_of(i), value.label.clone()))
            .collect();
        if !self.is_numeric() {
            return Scale::categories(label, ticks);
        }
        // A paper may have been where no cell of ours is.
        let dots = lines.iter().flat_map(|line| line.dots.iter().flatten());
        Scale::varied(label, ticks, dots.map(|dot| dot.x))
    }

    fn lines(&self, caption: &mut Vec<String>) -> Vec<Line> {
        let mut lines = Vec::new();
        for way in 0..self.study.ways.len() {
            let dots: Vec<Option<Dot>> = (0..self.values.len())
                .map(|i| self.dot(way, i, caption))
                .collect();
            let absent = (0..self.values.len())
                .filter_map(|i| self.absent(way, i))
                .collect();
            let name = self.study.way(way).to_owned();
            let line = Line {
                name,
                look: Look::Ours(way),
                dots,
                absent,
            };
            if !line.is_empty() {
                lines.push(line);
            }
        }
        lines.append(&mut self.theirs(caption));
        lines
    }

    fn dot(&self, way: usize, index: usize, caption: &mut Vec<String>) -> Option<Dot> {
        let cell = self.cell(way, index)?;
        let told = self.told(cell);
        self.say(cell, &told, caption);
        let spread = told.spread?;
        let (counted, all) = told.of;
        Some(Dot {
            x: self.x_of(index),
            y: spread.median,
            least: spread.least,
            most: spread.most,
            remark: (counted < all).then(|| format!("{counted}/{all}")),
        })
    }

    /// Where runs were made and none counts.
    fn absent(&self, way: usize, index: usize) -> Option<(f64, String)> {
        let cell = self.cell(way, index)?;
        let all = cell.cell.runs.len();
        let none = all > 0 && self.told(cell).spread.is_none();
        none.then(|| (self.x_of(index), format!("none of {all}")))
    }

    fn cell(&self, way: usize, index: usize) -> Option<&Summary<'_>> {
        self.cells.iter().find(|summary| {
            let (first, rest) = match summary.cell.at.split_first() {
                Some((first, rest)) => (Some(first), rest),
                None => (None, &[][..]),
            };
            summary.cell.way == way && first == Some(&self.values[index]) && rest == self.rest
        })
    }

    fn told(&self, cell: &Summary<'_>) -> Told {
        let all = cell.cell.runs.len();
        match self.quantity {
            Quantity::FinalAccuracy => Told {
                spread: cell.accuracy.map(|spread| spread.times(100.0)),
                of: (all - cell.diverged, all),
            },
            Quantity::SecondsToTarget => Told {
                spread: cell.seconds,
                of: (cell.reached, all),
            },
            Quantity::Speedup => Told {
                spread: self.speedup(cell),
                of: (cell.reached, all),
            },
            Quantity::Of(known) => {
                let spread = cell.figure(known);
                Told {
                    spread: spread.map(|spread| spread.times(known.factor)),
                    of: (spread.map_or(0, |spread| spread.n), all),
                }
            }
        }
    }

    fn speedup(&self, cell: &Summary<'_>) -> Option<Spread> {
        let first = self.cell(cell.cell.way, 0)?.seconds?.median;
        let target = self.study.target?;
        let reached = cell.cell.runs.iter().filter_map(|run| run.reached(target));
        Spread::of(reached.map(|point| first / point.seconds))
    }

    /// Tells the runs that do not count.
    fn say(&self, cell: &Summary<'_>, told: &Told, caption: &mut Vec<String>) {
        let (counted, all) = told.of;
        let place = self.study.place(cell.cell);
        let what = match self.quantity {
            Quantity::FinalAccuracy => "diverged",
            Quantity::SecondsToTarget | Quantity::Speedup => "did not reach the target",
            Quantity::Of(_) => "do not know it",
        };
        if all == 0 {
            caption.push(format!("{place}: no run has been made."));
        } else if counted < all {
            caption.push(format!("{place}: {} of {all} {what}.", all - counted));
        }
    }

    fn levels(&self, caption: &mut Vec<String>) -> Vec<Level> {
        // Times as fast as itself says nothing of one cell.
        if self.quantity == Quantity::Speedup {
            return Vec::new();
        }
        let mut levels = Vec::new();
        for summary in self
            .cells
            .iter()
            .filter(|one| self.study.is_reference(one.cell))
        {
            let told = self.told(summary);
            self.say(summary, &told, caption);
            if let Some(spread) = told.spread {
                levels.push(Level {
                    name: self.study.way(summary.cell.way).to_owned(),
                    look: Look::Ours(summary.cell.way),
                    y: spread.median,
                    least: spread.least,
                    most: spread.most,
                });
            }
        }
        levels
    }

    /// The paper's values, a line for each of their ways, whose name stands at its last mark.
    fn theirs(&self, caption: &mut Vec<String>) -> Vec<Line> {
        let points = self.study.paper.iter().flat_map(|paper| &paper.points);
        let points: Vec<_> = points.filter(|point| point.of == self.quantity).collect();
        if !points.is_empty() && !self.is_numeric() {
            caption.push("The paper's values are not drawn: here x is not a number.".to_owned());
            return Vec::new();
        }
        let mut ways: Vec<&Option<String>> = Vec::new();
        for point in &points {
            if !ways.contains(&&point.way) {
                ways.push(&point.way);
            }
        }
        let own = |way| points.iter().filter(move |point| &point.way == way);
        let lines = ways.into_iter();
        lines.map(|way| self.their_line(own(way), way)).collect()
    }

    fn their_line<'p>(
        &self,
        points: impl Iterator<Item = &'p &'p TheirPoint>,
        way: &Option<String>,
    ) -> Line {
        let share = match self.quantity {
            Quantity::FinalAccuracy => 100.0,
            Quantity::Of(known) => known.factor,
            _ => 1.0,
        };
        let mut dots: Vec<Dot> = points
            .map(|point| Dot {
                x: point.x,
                y: point.y * share,
                least: point.y * share,
                most: point.y * share,
                remark: None,
            })
            .collect();
        dots.sort_by(|a, b| a.x.total_cmp(&b.x));
        if let Some(last) = dots.last_mut() {
            last.remark.clone_from(way);
        }
        Line {
            name: "paper".to_owned(),
            look: Look::Paper,
            dots: dots.into_iter().map(Some).collect(),
            absent: Vec::new(),
        }
    }
}

impl Quantity {
    /// The title of its figure, and what its axis shows.
    pub(crate) fn words(self, study: &Study) -> (String, &'static str) {
        let target = study.target.map_or_else(String::new, |target| {
            format!(" ({} %)", super::spread::short(target * 100.0, 2))
        });
        match self {
            Self::FinalAccuracy => ("Final accuracy".to_owned(), "final accuracy, %"),
            Self::SecondsToTarget => (format!("Seconds to the target{target}"), "seconds"),
            Self::Speedup => (format!("Speedup to the target{target}"), "times as fast"),
            Self::Of(known) => (known.heading(), known.title),
        }
    }
}
