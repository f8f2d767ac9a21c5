//! One figure as SVG: its axes, bands, lines and marks.
//!
//! Invariant: lines differ by colour, dashes and marks.

use anyhow::Result;
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

use super::ink::{Area, FINE, Look, Place, Role, draw, line, mark, path, plain, polygon, text};
use super::scale::Scale;

/// The figure in pixels of the page.
const WIDTH: f64 = 480.0;
/// With one row of names below the axis.
const HEIGHT: f64 = 310.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 468.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 258.0;
/// Plotters writes a font of 0.8 times this.
const FONT: f64 = 14.5;
const SMALL: f64 = 13.5;
/// Width of a letter, about.
const LETTER: f64 = 8.0;
/// Names of ticks that would lie upon each other stand in so many rows.
const ROWS: usize = 3;
const ROW: f64 = 16.0;
/// Marks on a line without a mark for each point.
const MARKS: usize = 6;

/// A point of a line with its range.
#[derive(Clone, Debug)]
pub(crate) struct Dot {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// Written above it.
    pub(crate) remark: Option<String>,
}

/// One series.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// In order of x; a gap is a `None`.
    pub(crate) dots: Vec<Option<Dot>>,
    /// Where it has no number, with a remark.
    pub(crate) absent: Vec<(f64, String)>,
}

/// One level for all x.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) name: String,
    pub(crate) look: Look,
    pub(crate) y: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// How the points of a line belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// Few points: each has its mark.
    Points,
    /// Many points: some have marks, others for each line.
    Curve,
    /// Points that no line joins, as there is nothing between them.
    Apart,
}

/// A figure.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    pub(crate) join: Join,
    pub(crate) lines: Vec<Line>,
    pub(crate) levels: Vec<Level>,
}

/// The sample of a look that a legend shows.
///
/// # Errors
/// The drawing library refuses.
pub(crate) fn key(look: Look, join: Join) -> Result<String> {
    let size = (44.0, 14.0);
    draw(size, "class=\"key\" aria-hidden=\"true\"", |area| {
        if join != Join::Apart {
            line(area, &[(1.0, 7.0), (43.0, 7.0)], look)?;
        }
        mark(area, (22.0, 7.0), look)
    })
}

/// The sample of a level's look.
///
/// # Errors
/// The drawing library refuses.
pub(crate) fn level_key(look: Look) -> Result<String> {
    draw(
        (44.0, 14.0),
        "class=\"key level\" aria-hidden=\"true\"",
        |area| line(area, &[(1.0, 7.0), (43.0, 7.0)], look),
    )
}

impl Plot {
    /// The figure; `says` is for those who cannot see it.
    ///
    /// # Errors
    /// The drawing library refuses.
    pub(crate) fn to_svg(&self, says: &str) -> Result<String> {
        let says = says
            .replace('&', "&amp;")
            .replace('"', "&quot;")
            .replace('<', "&lt;");
        let attributes = format!("class=\"plot\" role=\"img\" aria-label=\"{says}\"");
        draw((WIDTH, self.height()), &attributes, |area| {
            self.axes(area)?;
            for level in &self.levels {
                self.level_band(area, level)?;
            }
            for (i, line) in self.lines.iter().enumerate() {
                self.band(area, line, i)?;
            }
            for level in &self.levels {
                self.level(area, level)?;
            }
            for (i, line) in self.lines.iter().enumerate() {
                self.line(area, line, i)?;
                self.absent(area, line, i)?;
            }
            Ok(())
        })
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.x.place(value)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * self.y.place(value)
    }

    /// The row of each tick's name; without one is what has no room in any.
    fn rows(&self) -> Vec<Option<usize>> {
        let mut free = [f64::NEG_INFINITY; ROWS];
        let names = self.x.ticks.iter().map(|(value, name)| {
            let half = half_width(name);
            let middle = middle(self.x(*value), name);
            let row = free.iter().position(|free| middle - half > *free)?;
            free[row] = middle + half + 6.0;
            Some(row)
        });
        names.collect()
    }

    fn height(&self) -> f64 {
        let last = self.rows().into_iter().flatten().max().unwrap_or(0);
        HEIGHT + ROW * last as f64
    }

    fn axes(&self, area: &Area<'_>) -> Result<()> {
        let grid = plain(Role::Grid).stroke_width(FINE as u32);
        for (value, name) in &self.y.ticks {
            let y = self.y(*value);
            path(area, &[(LEFT, y), (RIGHT, y)], grid)?;
            text(
                area,
                name,
                (LEFT - 7.0, y),
                FONT,
                (HPos::Right, VPos::Center),
            )?;
        }
        let axis = plain(Role::Ink).stroke_width(FINE as u32);
        path(area, &[(LEFT, BOTTOM), (RIGHT, BOTTOM)], axis)?;
        for ((value, name), row) in self.x.ticks.iter().zip(self.rows()) {
            let x = self.x(*value);
            path(area, &[(x, BOTTOM), (x, BOTTOM + 4.0)], axis)?;
            if let Some(row) = row {
                let at = (middle(x, name), BOTTOM + 9.0 + ROW * row as f64);
                text(area, name, at, FONT, (HPos::Center, VPos::Top))?;
            }
        }
        let below = ((LEFT + RIGHT) / 2.0, self.height() - 22.0);
        text(area, &self.x.label, below, FONT, (HPos::Center, VPos::Top))?;
        text(
            area,
            &self.y.label,
            (4.0, 4.0),
            FONT,
            (HPos::Left, VPos::Top),
        )?;
        let nothing = self.levels.is_empty() && self.lines.iter().all(|line| line.is_empty());
        if nothing {
            let middle = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
            text(
                area,
                "nothing was measured",
                middle,
                FONT,
                (HPos::Center, VPos::Center),
            )?;
        }
        Ok(())
    }

    fn level_band(&self, area: &Area<'_>, level: &Level) -> Result<()> {
        let (low, high) = (self.y(level.least), self.y(level.most));
        let corners = [(LEFT, low), (LEFT, high), (RIGHT, high), (RIGHT, low)];
        polygon(area, &corners, level.look.as_colour(Role::Band).filled())
    }

    fn level(&self, area: &Area<'_>, level: &Level) -> Result<()> {
        let y = self.y(level.y);
        line(area, &[(LEFT, y), (RIGHT, y)], level.look)?;
        // Below the line where there is no room above.
        let (at, vertical) = match y - TOP > 16.0 {
            true => (y - 4.0, VPos::Bottom),
            false => (y + 4.0, VPos::Top),
        };
        text(
            area,
            &level.name,
            (RIGHT - 2.0, at),
            SMALL,
            (HPos::Right, vertical),
        )
    }

    /// Where a dot of the line with this number stands.
    fn at(&self, dot: &Dot, number: usize) -> f64 {
        // Lines of categories stand next to each other, as all have the same x.
        let aside = match self.join {
            Join::Apart => (number as f64 - (self.lines.len() as f64 - 1.0) / 2.0) * 11.0,
            Join::Points | Join::Curve => 0.0,
        };
        self.x(dot.x) + aside
    }

    fn band(&self, area: &Area<'_>, line: &Line, number: usize) -> Result<()> {
        for part in line.parts() {
            let below = part
                .iter()
                .map(|dot| (self.at(dot, number), self.y(dot.least)));
            let above = part
                .iter()
                .rev()
                .map(|dot| (self.at(dot, number), self.y(dot.most)));
            if part.len() > 1 && self.join != Join::Apart {
                let corners: Vec<Place> = below.chain(above).collect();
                polygon(area, &corners, line.look.as_colour(Role::Band).filled())?;
                continue;
            }
            let whisker = line
                .look
                .as_colour(Role::Whisker)
                .stroke_width((1.5 * FINE) as u32);
            for (low, high) in below.zip(above.rev()) {
                path(area, &[low, high], whisker)?;
                for (x, y) in [low, high] {
                    path(area, &[(x - 4.0, y), (x + 4.0, y)], whisker)?;
                }
            }
        }
        Ok(())
    }

    /// At the upper edge, a row for each line.
    fn absent(&self, area: &Area<'_>, line: &Line, number: usize) -> Result<()> {
        for (x, remark) in &line.absent {
            let (x, y) = (self.x(*x), TOP + 7.0 + 15.0 * number as f64);
            mark(area, (x, y), line.look)?;
            text(
                area,
                remark,
                (x - 9.0, y),
                SMALL,
                (HPos::Right, VPos::Center),
            )?;
        }
        Ok(())
    }

    fn line(&self, area: &Area<'_>, series: &Line, number: usize) -> Result<()> {
        for part in series.parts() {
            let places: Vec<Place> = part
                .iter()
                .map(|dot| (self.at(dot, number), self.y(dot.y)))
                .collect();
            if places.len() > 1 && self.join != Join::Apart {
                line(area, &places, series.look)?;
            }
            let (first, every) = match self.join {
                Join::Curve if places.len() > MARKS => {
                    let every = places.len().div_ceil(MARKS);
                    (number * every / self.lines.len().max(1), every)
                }
                _ => (0, 1),
            };
            for place in places.iter().skip(first).step_by(every) {
                mark(area, *place, series.look)?;
            }
            for (dot, (x, y)) in part.iter().zip(&places) {
                let Some(remark) = &dot.remark else { continue };
                // A paper's way stands at the last mark: before it there is room.
                let (place, to) = match series.look {
                    Look::Paper => ((x - 9.0, *y), (HPos::Right, VPos::Center)),
                    _ => ((*x, y - 7.0), (HPos::Center, VPos::Bottom)),
                };
                text(area, remark, place, SMALL, to)?;
            }
        }
        Ok(())
    }
}

fn half_width(name: &str) -> f64 {
    name.chars().count() as f64 * LETTER / 2.0
}

/// The middle of a tick's name: where the tick is, but not beyond the figure's edges.
fn middle(x: f64, name: &str) -> f64 {
    let half = half_width(name);
    x.min(WIDTH - half - 1.0).max(half + 1.0)
}

impl Line {
    /// The dots between gaps.
    fn parts(&self) -> impl Iterator<Item = Vec<&Dot>> {
        let parts = self.dots.split(Option::is_none);
        parts
            .filter(|part| !part.is_empty())
            .map(|part| part.iter().flatten().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.absent.is_empty() && self.dots.iter().all(Option::is_none)
    }
}
