//! What figures are drawn with, and how they become part of the page.
//!
//! Invariant: all colours are classes of the page's style, so that light, dark and print each
//! have their own.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Units of the picture for each pixel: plotters knows whole numbers only.
pub(super) const FINE: f64 = 4.0;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// One of ours, by its number.
    Ours(usize),
    /// A paper's.
    Paper,
}

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Place = (f64, f64);

/// What a colour stands for until the classes are put in.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Line = 1,
    Fill,
    Outline,
    Band,
    Whisker,
    Ink,
    Grid,
    Halo,
}

impl Look {
    pub(crate) fn number(self) -> usize {
        match self {
            // The colour has one byte for it.
            Self::Ours(number) => number % 140,
            Self::Paper => 255,
        }
    }

    pub(super) fn as_colour(self, role: Role) -> RGBColor {
        RGBColor(role as u8, self.number() as u8, 0xd7)
    }
}

pub(super) fn plain(role: Role) -> RGBColor {
    RGBColor(role as u8, 0, 0xd7)
}

/// Draws, and makes the picture a part of the page.
pub(super) fn draw(
    size: Place,
    attributes: &str,
    what: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    let (width, height) = fine(size);
    {
        let root = SVGBackend::with_string(&mut svg, (width as u32, height as u32));
        let root = root.into_drawing_area();
        what(&root)?;
        root.present().map_err(refused)?;
    }
    let start = svg.find("<svg").unwrap_or(0);
    let body = start + svg[start..].find('>').map_or(0, |end| end + 1);
    let head = format!("<svg viewBox=\"0 0 {width} {height}\" {attributes}>\n");
    Ok(head + &classes(&svg[body..]))
}

/// Puts classes in the place of colours.
fn classes(svg: &str) -> String {
    let mut new = String::with_capacity(svg.len());
    let mut rest = svg;
    while let Some(at) = rest.find("=\"#") {
        let name = rest[..at].rfind(' ').map_or(0, |space| space + 1);
        let end = at + 3 + 6;
        let class = rest
            .get(at + 3..end)
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match class.and_then(class_of) {
            Some(class) => {
                new.push_str(&rest[..name]);
                new.push_str(&format!("class=\"{class}"));
            }
            None => new.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    new + rest
}

fn class_of(colour: u32) -> Option<String> {
    let [_, role, number, last] = colour.to_be_bytes();
    let look = match number {
        255 => "paper".to_owned(),
        number => format!("c{} d{}", number % 7, number % 4),
    };
    let class = match role {
        1 => format!("line {look}"),
        2 => format!("fill {look}"),
        3 => format!("outline {look}"),
        4 => format!("band {look}"),
        5 => format!("whisker {look}"),
        6 => "ink".to_owned(),
        7 => "grid".to_owned(),
        8 => "halo".to_owned(),
        _ => return None,
    };
    (last == 0xd7).then_some(class)
}

fn fine((x, y): Place) -> (i32, i32) {
    ((x * FINE).round() as i32, (y * FINE).round() as i32)
}

fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a figure cannot be drawn: {error}; please report this")
}

pub(super) fn path(area: &Area<'_>, places: &[Place], style: ShapeStyle) -> Result<()> {
    let places: Vec<_> = places.iter().copied().map(fine).collect();
    area.draw(&PathElement::new(places, style)).map_err(refused)
}

pub(super) fn polygon(area: &Area<'_>, places: &[Place], style: ShapeStyle) -> Result<()> {
    let places: Vec<_> = places.iter().copied().map(fine).collect();
    area.draw(&Polygon::new(places, style)).map_err(refused)
}

pub(super) fn line(area: &Area<'_>, places: &[Place], look: Look) -> Result<()> {
    path(
        area,
        places,
        look.as_colour(Role::Line).stroke_width((2.0 * FINE) as u32),
    )
}

pub(super) fn text(
    area: &Area<'_>,
    what: &str,
    at: Place,
    size: f64,
    to: (HPos, VPos),
) -> Result<()> {
    let ink = plain(Role::Ink);
    let style = ("sans-serif", size * FINE, &ink).into_text_style(area);
    let style = style.pos(Pos::new(to.0, to.1));
    area.draw(&Text::new(what.to_owned(), fine(at), style))
        .map_err(refused)
}

/// A disc, a triangle, an open square, a cross or an open disc; of a paper an open diamond.
pub(super) fn mark(area: &Area<'_>, (x, y): Place, look: Look) -> Result<()> {
    let fill = look.as_colour(Role::Fill).filled();
    let halo = plain(Role::Halo).filled();
    let thin = look
        .as_colour(Role::Outline)
        .stroke_width((1.8 * FINE) as u32);
    let around = |corners: &[Place]| -> Vec<Place> {
        corners
            .iter()
            .map(|corner| (x + corner.0, y + corner.1))
            .collect()
    };
    let open = |corners: &[Place]| {
        let mut places = around(corners);
        polygon(area, &places, halo)?;
        places.extend_from_within(..2);
        path(area, &places, thin)
    };
    let radius = (4.0 * FINE) as i32;
    match look.number() {
        255 => open(&[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)]),
        number if number % 5 == 0 => area
            .draw(&Circle::new(fine((x, y)), radius, fill))
            .map_err(refused),
        number if number % 5 == 1 => {
            polygon(area, &around(&[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)]), fill)
        }
        number if number % 5 == 2 => open(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        number if number % 5 == 3 => {
            path(area, &around(&[(-4.0, -4.0), (4.0, 4.0)]), thin)?;
            path(area, &around(&[(-4.0, 4.0), (4.0, -4.0)]), thin)
        }
        _ => {
            area.draw(&Circle::new(fine((x, y)), radius, halo))
                .map_err(refused)?;
            area.draw(&Circle::new(fine((x, y)), radius, thin))
                .map_err(refused)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_become_classes_and_names_are_escaped() {
        let svg = draw((40.0, 20.0), "class=\"x\"", |area| {
            line(area, &[(1.0, 1.0), (9.0, 9.0)], Look::Ours(8))?;
            mark(area, (5.0, 5.0), Look::Paper)?;
            text(area, "<b>", (1.0, 1.0), 10.0, (HPos::Left, VPos::Top))
        });
        let svg = svg.expect("a picture");
        assert!(
            svg.starts_with("<svg viewBox=\"0 0 160 80\" class=\"x\">"),
            "{svg}"
        );
        assert!(svg.contains("class=\"line c1 d0\"") && svg.contains("class=\"outline paper\""));
        assert!(svg.contains("&lt;b&gt;") && !svg.contains('#'), "{svg}");
    }
}
