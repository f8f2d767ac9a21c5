//! The picture: lines over a grid, with a legend, as SVG.
//!
//! Invariant: any numbers give a picture. Points that are not finite are left out and break their
//! line; a series of one point is a dot; no point at all gives empty axes that say so.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::CurveRow;

const SIZE_PIXELS: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Colours told apart by people with any colour vision (Okabe and Ito 2008, without yellow).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(40, 40, 40),
];

/// Entries that the legend has room for; more lines are drawn without one.
const MAX_LEGEND: usize = 16;

/// One line of a picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// x and y, in order of x.
    pub points: Vec<(f64, f64)>,
}

/// A picture of one or more series.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// The lines.
    pub series: Vec<Series>,
    /// What it shows.
    pub title: String,
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit.
    pub y_label: String,
}

/// Why a picture could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file could not be written.
    #[error("{}: cannot be written: {source}; is the folder there, writable and not full?", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The drawing library refused.
    #[error("{}: cannot be drawn: {reason}", path.display())]
    Draw {
        /// The file.
        path: PathBuf,
        /// Its reason.
        reason: String,
    },
}

impl Curve {
    /// Test accuracy in per cent over seconds, one line for each solver of `rows`.
    pub fn accuracy(title: &str, rows: &[CurveRow]) -> Self {
        let y = |row: &CurveRow| row.test_accuracy.map(|share| 100.0 * share);
        Self::of_rows(title, "test accuracy (%)", rows, y)
    }

    /// Training loss over seconds, one line for each solver of `rows`.
    pub fn loss(title: &str, rows: &[CurveRow]) -> Self {
        Self::of_rows(title, "training loss", rows, |row| row.loss)
    }

    fn of_rows(
        title: &str,
        y_label: &str,
        rows: &[CurveRow],
        y: impl Fn(&CurveRow) -> Option<f64>,
    ) -> Self {
        let mut lines: BTreeMap<(u16, u32), Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows {
            if let Some(y) = y(row) {
                lines
                    .entry((row.node, row.solver))
                    .or_default()
                    .push((row.seconds, y));
            }
        }
        let several = lines.keys().any(|&(_, solver)| solver > 0);
        let name = |(node, solver)| {
            if several {
                format!("node {node}, solver {solver}")
            } else {
                format!("node {node}")
            }
        };
        Self {
            series: lines
                .into_iter()
                .map(|(key, points)| Series {
                    name: name(key),
                    points,
                })
                .collect(),
            title: title.to_owned(),
            x_label: "seconds".to_owned(),
            y_label: y_label.to_owned(),
        }
    }

    /// Writes the picture, 960×540.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_svg(&self, path: &Path) -> Result<(), PictureError> {
        let svg = self.to_svg().map_err(|reason| PictureError::Draw {
            path: path.to_owned(),
            reason: reason.to_string(),
        })?;
        fs::write(path, svg).map_err(|source| PictureError::Write {
            path: path.to_owned(),
            source,
        })
    }

    /// The picture as text, to be put into a page.
    ///
    /// # Errors
    /// The drawing library refuses.
    pub fn to_svg(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE_PIXELS).into_drawing_area();
            root.fill(&WHITE)?;
            self.draw(&root)?;
            root.present()?;
        }
        Ok(svg)
    }

    fn draw(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn Error>> {
        let all = || {
            self.series
                .iter()
                .flat_map(|series| &series.points)
                .filter(|p| is_finite(p))
        };
        let x_range = range(all().map(|p| p.0));
        let y_range = range(all().map(|p| p.1));
        let (x_step, y_step) = (x_range.end - x_range.start, y_range.end - y_range.start);
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, (FONT, 24, &INK))
            .margin(16)
            .margin_right(28)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(x_range, y_range)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style((FONT, 15, &INK))
            .axis_desc_style((FONT, 17, &INK))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_labels(10)
            .y_labels(8)
            .x_label_formatter(&|x| number(*x, x_step))
            .y_label_formatter(&|y| number(*y, y_step))
            .draw()?;
        if all().next().is_none() {
            let middle = (SIZE_PIXELS.0 as i32 / 2, SIZE_PIXELS.1 as i32 / 2);
            let style = (FONT, 20, &INK)
                .into_text_style(root)
                .pos(Pos::new(HPos::Center, VPos::Center));
            root.draw(&Text::new("nothing was measured", middle, style))?;
        }
        for (i, series) in self.series.iter().enumerate() {
            draw_series(
                &mut chart,
                series,
                COLOURS[i % COLOURS.len()],
                i < MAX_LEGEND,
            )?;
        }
        if all().next().is_some() {
            chart
                .configure_series_labels()
                .position(self.free_corner())
                .label_font((FONT, 15, &INK))
                .background_style(WHITE.mix(0.85))
                .border_style(GRID)
                .margin(8)
                .draw()?;
        }
        Ok(())
    }

    /// The right corner away from where the lines end: curves that rise leave the lower one.
    fn free_corner(&self) -> SeriesLabelPosition {
        let ends = self.series.iter().filter_map(|series| {
            let mut points = series.points.iter().filter(|p| is_finite(p));
            let first = points.next()?;
            Some((first.1, points.next_back().unwrap_or(first).1))
        });
        let rise = ends
            .map(|(first, last)| (last - first).clamp(-1e300, 1e300).signum())
            .sum::<f64>();
        if rise < 0.0 {
            SeriesLabelPosition::UpperRight
        } else {
            SeriesLabelPosition::LowerRight
        }
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A line for each run of finite points, a dot for a run of one.
fn draw_series(
    chart: &mut Chart<'_, '_>,
    series: &Series,
    colour: RGBColor,
    legend: bool,
) -> Result<(), Box<dyn Error>> {
    let line = colour.stroke_width(2);
    let mut named = !legend;
    for run in series
        .points
        .split(|point| !is_finite(point))
        .filter(|run| !run.is_empty())
    {
        let drawn = match run {
            [dot] => chart.draw_series([Circle::new(*dot, 4, colour.filled())])?,
            _ => chart.draw_series(LineSeries::new(run.iter().copied(), line))?,
        };
        if !named {
            drawn
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], line));
            named = true;
        }
    }
    Ok(())
}

fn is_finite(point: &(f64, f64)) -> bool {
    // Beyond this the width of a range would not be finite.
    point.0.abs() < 1e300 && point.1.abs() < 1e300
}

/// From the least to the greatest value with a little air; never empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    if low > high {
        return 0.0..1.0;
    }
    // One value, or values that differ by rounding only.
    let least = 1e-6 * low.abs().max(high.abs());
    let air = if high - low > least {
        0.03 * (high - low)
    } else {
        least.max(0.5)
    };
    // Axes of what is never negative begin at zero at the earliest.
    let start = if low >= 0.0 {
        (low - air).max(0.0)
    } else {
        low - air
    };
    start..high + air
}

/// A label with as many digits as `span`, the width of the axis, needs.
fn number(value: f64, span: f64) -> String {
    // Rounding of the steps leaves things like -1e-17.
    let value = if value.abs() < 1e-9 * span {
        0.0
    } else {
        value
    };
    if span >= 1e6 || span < 1e-4 {
        return format!("{value:.2e}");
    }
    let decimals = (1.0 - (span / 10.0).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
