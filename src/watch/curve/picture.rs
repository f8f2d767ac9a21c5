//! The picture: panels of lines over a grid, one title and one legend, as SVG.
//!
//! Invariant: any numbers give a picture. Points that are not finite are left out and break their
//! line; no point at all gives empty axes with a remark. Lines differ by colour, dashes and marks,
//! so that two that lie upon each other are both seen.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use crate::watch::wrap::wrap;

const PANEL_PIXELS: (u32, u32) = (620, 400);
/// The narrowest picture: a title needs some space.
const WIDTH_PIXELS_MIN: u32 = 900;
const LEGEND_PIXELS: u32 = 190;
const LINE_PIXELS: i32 = 20;
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
/// Length of dashes and of gaps; only the first line has none, so that no other hides what lies
/// below it.
const DASHES: [(i32, i32); 3] = [(8, 8), (3, 6), (14, 10)];
const MARKS: usize = 4;

/// A line of more points has no marks: they would hide it.
const MOST_MARKS: usize = 60;
/// Entries that fit the legend; it tells how many more lines there are.
const MOST_LEGEND: usize = 16;

/// One line of a picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// x and y, in order of x.
    pub points: Vec<(f64, f64)>,
}

/// One panel: one or more series over the same axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// The lines; those of one place in all panels of a picture belong together.
    pub series: Vec<Series>,
    /// What x is, with its unit.
    pub x_label: String,
    /// How x is laid out.
    pub x_axis: Axis,
    /// What y is, with its unit.
    pub y_label: String,
    /// How y is laid out.
    pub y_axis: Axis,
}

/// A picture of one or more panels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// What it shows; it is wrapped.
    pub title: String,
    /// The panels, row by row, two in a row.
    pub panels: Vec<Panel>,
}

/// Why a picture could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file could not be written.
    #[error("{}: cannot be written: {source}; is the folder there, writable and not full?", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The drawing library refused.
    #[error("{}: cannot be drawn: {reason}", path.display())]
    Draw {
        /// Path of the file.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// How a line looks.
#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    dashes: Option<(i32, i32)>,
    mark: usize,
}

impl Look {
    fn of(line: usize) -> Self {
        Self {
            colour: COLOURS[line % COLOURS.len()],
            dashes: line.checked_sub(1).map(|line| DASHES[line % DASHES.len()]),
            mark: line % MARKS,
        }
    }
}

impl Curve {
    /// Writes the picture.
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
        let across = self.panels.len().clamp(1, 2);
        let down = self.panels.len().div_ceil(2).max(1);
        let panels = PANEL_PIXELS.0 * across as u32 + LEGEND_PIXELS;
        let width = panels.max(WIDTH_PIXELS_MIN);
        // Eight pixels are the mean width of a letter of this size.
        let title = wrap(&self.title, (width as usize - 60) / 8);
        let head = LINE_PIXELS * title.lines().count() as i32 + 20;
        let height = head as u32 + PANEL_PIXELS.1 * down as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let (head, body) = root.split_vertically(head);
            for (line, y) in title.lines().zip((14..).step_by(LINE_PIXELS as usize)) {
                head.draw(&Text::new(
                    line.to_owned(),
                    (24, y),
                    (FONT, 16).into_font().color(&INK),
                ))?;
            }
            let (body, legend) = body.split_horizontally((width - LEGEND_PIXELS) as i32);
            for (panel, area) in self.panels.iter().zip(body.split_evenly((down, across))) {
                panel.draw(&area)?;
            }
            self.legend(&legend)?;
            root.present()?;
        }
        Ok(svg)
    }

    fn legend(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let most = self.panels.iter().max_by_key(|panel| panel.series.len());
        let names = most.map_or(&[][..], |panel| &panel.series);
        let mut y = 30;
        for (i, series) in names.iter().take(MOST_LEGEND).enumerate() {
            let look = Look::of(i);
            draw_line(area, &[(6, y), (46, y)], look)?;
            draw_mark(area, (26, y), look)?;
            let style = (FONT, 14, &INK).into_text_style(area);
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(series.name.clone(), (54, y), style))?;
            y += LINE_PIXELS + 2;
        }
        if let Some(more) = names.len().checked_sub(MOST_LEGEND + 1) {
            let text = format!("and {} more", more + 1);
            area.draw(&Text::new(
                text,
                (54, y - 7),
                (FONT, 14).into_font().color(&INK),
            ))?;
        }
        Ok(())
    }
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let all = || {
            let points = self.series.iter().flat_map(|series| &series.points);
            points.filter(|p| is_finite(p))
        };
        let x = Scale::of(&self.x_axis, all().map(|p| p.0));
        let y = Scale::of(&self.y_axis, all().map(|p| p.1));
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style((FONT, 14, &INK))
            .axis_desc_style((FONT, 16, &INK))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_label_formatter(&|value| x.label(*value))
            .y_label_formatter(&|value| y.label(*value))
            .draw()?;
        if all().next().is_none() {
            let (width, height) = area.dim_in_pixel();
            let style = (FONT, 20, &INK)
                .into_text_style(area)
                .pos(Pos::new(HPos::Center, VPos::Center));
            let middle = (width as i32 / 2, height as i32 / 2);
            area.draw(&Text::new("nothing was measured", middle, style))?;
        }
        for (i, series) in self.series.iter().enumerate() {
            draw_series(area, &chart, series, Look::of(i))?;
        }
        Ok(())
    }
}

/// A line for each run of finite points, marks where there are not too many.
fn draw_series(
    area: &Area<'_>,
    chart: &Chart<'_, '_>,
    series: &Series,
    look: Look,
) -> Result<(), Box<dyn Error>> {
    let (left, top) = area.get_base_pixel();
    let place = |point: &(f64, f64)| {
        let (x, y) = chart.backend_coord(point);
        (x - left, y - top)
    };
    let runs = series.points.split(|point| !is_finite(point));
    for run in runs.filter(|run| !run.is_empty()) {
        let places: Vec<(i32, i32)> = run.iter().map(place).collect();
        if places.len() > 1 {
            draw_line(area, &places, look)?;
        }
        if series.points.len() <= MOST_MARKS || places.len() == 1 {
            for at in places {
                draw_mark(area, at, look)?;
            }
        }
    }
    Ok(())
}

fn draw_line(area: &Area<'_>, places: &[(i32, i32)], look: Look) -> Result<(), Box<dyn Error>> {
    let style = look.colour.stroke_width(2);
    match look.dashes {
        None => area.draw(&PathElement::new(places.to_vec(), style))?,
        Some((dash, gap)) => {
            for part in dashed(places, f64::from(dash), f64::from(gap)) {
                area.draw(&PathElement::new(part, style))?;
            }
        }
    }
    Ok(())
}

/// The dashes of a line.
fn dashed(places: &[(i32, i32)], dash: f64, gap: f64) -> Vec<Vec<(i32, i32)>> {
    let mut parts = Vec::new();
    let (mut drawn, mut left) = (true, dash);
    let mut part = vec![places[0]];
    for pair in places.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (x1 - x0).hypot(y1 - y0);
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let share = done / length;
            let at = (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share);
            let at = (at.0.round() as i32, at.1.round() as i32);
            if drawn {
                part.push(at);
                parts.push(std::mem::take(&mut part));
            } else {
                part = vec![at];
            }
            drawn = !drawn;
            left = if drawn { dash } else { gap };
        }
        left -= length - done;
        if drawn {
            part.push(pair[1]);
        }
    }
    if part.len() > 1 {
        parts.push(part);
    }
    parts
}

/// A disc, a triangle, a cross or a square.
fn draw_mark(area: &Area<'_>, (x, y): (i32, i32), look: Look) -> Result<(), Box<dyn Error>> {
    let (filled, thin) = (look.colour.filled(), look.colour.stroke_width(2));
    match look.mark {
        0 => area.draw(&Circle::new((x, y), 3, filled))?,
        1 => area.draw(&TriangleMarker::new((x, y), 5, filled))?,
        2 => area.draw(&Cross::new((x, y), 4, thin))?,
        _ => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], thin))?,
    }
    Ok(())
}

fn is_finite(point: &(f64, f64)) -> bool {
    // Beyond this the width of a range would not be finite.
    point.0.abs() < 1e300 && point.1.abs() < 1e300
}
