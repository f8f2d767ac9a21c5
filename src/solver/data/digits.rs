//! Built-in data: 28×28 grey digits that look handwritten, as many as wanted, from a seed.
//!
//! A digit is one of several templates of its class: strokes through points. The points are shaken,
//! and the curves bent by a coarse random displacement grid. (This is the elastic distortion of
//! Simard, Steinkraus and Platt 2003, applied to the centre of the pen instead of to pixels, which
//! is some 50 times cheaper.) Then the digit is turned, slanted, stretched and shifted, and drawn
//! anti-aliased with a pen whose width and ink vary. Noise comes last. Touches no files.
//!
//! Invariants: image i of a split is a pure function of (seed, split, i); splits never share a
//! random stream. Only `+ - * /` and `sqrt` are used, so every machine gets the same bytes.

mod templates;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::transform::below;
use super::{Images, stream};
use templates::{Point, TEMPLATES};

/// Height and width of a digit in pixels.
pub const SIDE: usize = 28;

/// Pixels of the height of an average digit, as in MNIST.
const HEIGHT_PIXELS: f32 = 20.0;

/// Pieces that a curve between two points is drawn with.
const PIECES: usize = 4;

/// Cells of the displacement grid along each side.
const GRID: usize = 3;

/// Which images: those to learn from or those to test on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Images to learn from.
    Train,
    /// Images to test on.
    Test,
}

/// The first `count` digits of a split, shape 1×28×28, 10 classes.
pub fn generate(seed: u64, split: Split, count: usize) -> Images {
    let mut pixels = vec![0; count * SIDE * SIDE];
    let mut canvas = Canvas::default();
    let labels = pixels
        .chunks_exact_mut(SIDE * SIDE)
        .enumerate()
        .map(|(i, image)| draw(seed, split, i as u64, &mut canvas, image))
        .collect();
    Images {
        pixels,
        labels,
        shape: [1, SIDE, SIDE],
        classes: 10,
    }
}

/// Draws digit `i` of a split; returns its label.
fn draw(seed: u64, split: Split, i: u64, canvas: &mut Canvas, image: &mut [u8]) -> u8 {
    let rng = &mut stream(seed, i << 1 | u64::from(split == Split::Test));
    let label = below(rng, TEMPLATES.len());
    let template = TEMPLATES[label][below(rng, TEMPLATES[label].len())];
    let hand = Hand::new(rng);
    canvas.clear();
    let mut curve = std::mem::take(&mut canvas.curve);
    for stroke in template {
        trace(stroke, hand.shake, rng, &mut curve);
        curve
            .iter_mut()
            .for_each(|point| *point = hand.place(*point));
        let mut radius = hand.radius;
        for ends in curve.windows(2) {
            // The pressure of the pen drifts along the stroke.
            radius = (radius + 0.05 * bell(rng)).clamp(0.75 * hand.radius, 1.3 * hand.radius);
            canvas.line(ends[0], ends[1], radius, hand.softness);
        }
        if let [dot] = curve[..] {
            canvas.line(dot, dot, radius, hand.softness);
        }
    }
    canvas.curve = curve;
    canvas.develop(hand.ink, hand.noise, rng, image);
    label as u8
}

/// How one digit is written: everything that is drawn once per image.
struct Hand {
    /// Standard deviation by which points of a stroke are off, in boxes.
    shake: f32,
    /// Displacements of the grid's control points, in boxes.
    bend: [[Point; GRID + 2]; GRID + 2],
    /// Turn, slant and stretch: pixels per box.
    matrix: [[f32; 2]; 2],
    /// Where the middle of the box comes to lie, in pixels.
    centre: Point,
    /// Half the width of the pen in pixels.
    radius: f32,
    /// Width of the pen's edge in pixels.
    softness: f32,
    /// Brightness of full ink, 0..=255.
    ink: f32,
    /// Amplitude of the noise, of 255.
    noise: f32,
}

impl Hand {
    fn new(rng: &mut Xoshiro256PlusPlus) -> Self {
        let height = HEIGHT_PIXELS * (1.0 + 0.09 * bell(rng)).clamp(0.72, 1.2);
        let width = height * (0.95 + 0.16 * bell(rng)).clamp(0.5, 1.35);
        let slant = (0.12 + 0.18 * bell(rng)).clamp(-0.4, 0.65);
        let turn = (0.14 * bell(rng)).clamp(-0.4, 0.4);
        // A turn without sine and cosine: the same bits everywhere.
        let cos = 1.0 / (1.0 + turn * turn).sqrt();
        let sin = turn * cos;
        let matrix = [
            [cos * width, -cos * slant * height - sin * height],
            [sin * width, cos * height - sin * slant * height],
        ];
        let middle = SIDE as f32 / 2.0;
        let mut bend = [[(0.0, 0.0); GRID + 2]; GRID + 2];
        for corner in bend.iter_mut().flatten() {
            *corner = (0.095 * bell(rng), 0.08 * bell(rng));
        }
        Self {
            shake: 0.006 + 0.016 * unit(rng),
            bend,
            matrix,
            centre: (middle + 1.5 * bell(rng), middle + 1.2 * bell(rng)),
            radius: (1.15 + 0.38 * bell(rng)).clamp(0.5, 2.2),
            softness: 0.9 + 0.7 * unit(rng),
            ink: 150.0 + 105.0 * (1.0 - unit(rng) * unit(rng)),
            noise: 26.0 * unit(rng) * unit(rng),
        }
    }

    /// Where a point of the box comes to lie, in pixels.
    fn place(&self, (x, y): Point) -> Point {
        let (dx, dy) = self.displacement(x, y);
        let (x, y) = (x + dx - 0.5, y + dy - 0.5);
        let [[xx, xy], [yx, yy]] = self.matrix;
        let edge = SIDE as f32 - 2.0;
        (
            (self.centre.0 + xx * x + xy * y).clamp(2.0, edge),
            (self.centre.1 + yx * x + yy * y).clamp(2.0, edge),
        )
    }

    /// The displacement at a point of the box: a quadratic B-spline over the grid, so that
    /// curves stay smooth across cells.
    fn displacement(&self, x: f32, y: f32) -> Point {
        let cell = |at: f32| {
            let at = (at * GRID as f32).clamp(0.0, GRID as f32);
            let index = (at as usize).min(GRID - 1);
            let t = at - index as f32;
            (
                index,
                [
                    0.5 * (1.0 - t) * (1.0 - t),
                    0.5 + t * (1.0 - t),
                    0.5 * t * t,
                ],
            )
        };
        let ((i, across), (j, down)) = (cell(x), cell(y));
        let mut sum = (0.0, 0.0);
        for (row, down) in self.bend[j..j + 3].iter().zip(down) {
            for (corner, across) in row[i..i + 3].iter().zip(across) {
                sum.0 += down * across * corner.0;
                sum.1 += down * across * corner.1;
            }
        }
        sum
    }
}

/// Shakes the points of a stroke and puts the Catmull-Rom curve through them into `curve`.
fn trace(stroke: &[Point], shake: f32, rng: &mut Xoshiro256PlusPlus, curve: &mut Vec<Point>) {
    const MOST: usize = 16;
    let mut points = [(0.0, 0.0); MOST];
    let stroke = &stroke[..stroke.len().min(MOST)];
    for (i, &(x, y)) in stroke.iter().enumerate() {
        let corner = i > 0 && stroke[i - 1] == (x, y);
        points[i] = if corner {
            points[i - 1]
        } else {
            (x + shake * bell(rng), y + shake * bell(rng))
        };
    }
    let points = &points[..stroke.len()];
    curve.clear();
    curve.extend(points.first());
    for i in 1..points.len() {
        let (a, b) = (points[i - 1], points[i]);
        if a == b {
            continue;
        }
        let before = points[i.saturating_sub(2)];
        let after = points[(i + 1).min(points.len() - 1)];
        for piece in 1..=PIECES {
            let t = piece as f32 / PIECES as f32;
            let at = |p: f32, a: f32, b: f32, q: f32| {
                let (c1, c2) = (b - p, 2.0 * p - 5.0 * a + 4.0 * b - q);
                a + 0.5 * t * (c1 + t * (c2 + t * (3.0 * (a - b) + q - p)))
            };
            curve.push((
                at(before.0, a.0, b.0, after.0),
                at(before.1, a.1, b.1, after.1),
            ));
        }
    }
}

/// What the pen has covered so far.
struct Canvas {
    /// Share of each pixel under ink, 0..=1.
    cover: [f32; SIDE * SIDE],
    /// Memory for the curve being drawn.
    curve: Vec<Point>,
}

impl Default for Canvas {
    fn default() -> Self {
        Self {
            cover: [0.0; SIDE * SIDE],
            curve: Vec::new(),
        }
    }
}

impl Canvas {
    fn clear(&mut self) {
        self.cover.fill(0.0);
    }

    /// A line with round ends from `a` to `b`, half as wide as `radius`, all in pixels.
    fn line(&mut self, a: Point, b: Point, radius: f32, softness: f32) {
        let reach = radius + 0.5 * softness;
        let range = |a: f32, b: f32| {
            // Pixel i has its centre at i + 0.5.
            let low = (a.min(b) - reach - 0.5).max(0.0) as usize;
            let high = ((a.max(b) + reach + 0.5).max(0.0) as usize).min(SIDE);
            low.min(high)..high
        };
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let length2 = (dx * dx + dy * dy).max(1e-12);
        let (ux, uy) = (dx / length2, dy / length2);
        let per_softness = 1.0 / softness;
        let columns = range(a.0, b.0);
        for row in range(a.1, b.1) {
            let py = row as f32 + 0.5 - a.1;
            let start = row * SIDE;
            let cover = &mut self.cover[start + columns.start..start + columns.end];
            for (column, cover) in columns.clone().zip(cover) {
                let px = column as f32 + 0.5 - a.0;
                let t = (px * ux + py * uy).clamp(0.0, 1.0);
                let (ex, ey) = (px - t * dx, py - t * dy);
                let distance = (ex * ex + ey * ey).sqrt();
                *cover = cover.max(((reach - distance) * per_softness).min(1.0));
            }
        }
    }

    /// Ink and noise to bytes.
    fn develop(&self, ink: f32, noise: f32, rng: &mut Xoshiro256PlusPlus, image: &mut [u8]) {
        for (pixels, cover) in image.chunks_mut(4).zip(self.cover.chunks(4)) {
            let mut word = rng.next_u64();
            for (pixel, cover) in pixels.iter_mut().zip(cover) {
                // The sum of two even bytes: a triangle between -1 and 1.
                let even = (word & 0xff) as i32 + (word >> 8 & 0xff) as i32 - 255;
                word >>= 16;
                *pixel = (cover * ink + noise * (even as f32 / 255.0)).clamp(0.0, 255.0) as u8;
            }
        }
    }
}

/// Even between 0 and 1.
fn unit(rng: &mut Xoshiro256PlusPlus) -> f32 {
    (rng.next_u64() >> 40) as f32 / (1u64 << 24) as f32
}

/// Near a normal distribution of mean 0 and deviation 1, within ±3.46: the sum of four even
/// numbers.
fn bell(rng: &mut Xoshiro256PlusPlus) -> f32 {
    let word = rng.next_u64();
    let sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
    // Deviation of the sum of four even numbers of width 65536: 65536 / √3.
    (sum as f32 - 131_070.0) / 37_837.2
}

#[cfg(test)]
mod tests;
