//! An axis: even or logarithmic, its ticks and their labels.
//!
//! Invariant: any numbers give an axis that is not empty, and any number has a place on it.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// How values are laid out.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Axis {
    /// In even steps.
    #[default]
    Even,
    /// By their logarithm; values of zero or less are drawn at the low end.
    Log,
    /// By their logarithm, with these ticks.
    LogAt(Vec<f64>),
}

/// Ticks of an axis, at most.
const MOST_TICKS: usize = 11;

/// An axis with its range, as the drawing library wants it.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    range: Range<f64>,
    log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// The scale for these values.
    pub(super) fn of(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let (range, log) = match axis {
            Axis::Even => (even_range(values), false),
            Axis::Log | Axis::LogAt(_) => (log_range(values), true),
        };
        let within = |tick: &f64| range.contains(tick);
        let ticks = match axis {
            Axis::LogAt(ticks) => ticks.iter().copied().filter(within).collect(),
            // Less than a factor of four has no round powers to speak of.
            Axis::Log if range.end / range.start > 4.0 => log_ticks(&range),
            _ => even_ticks(&range),
        };
        Self { range, log, ticks }
    }

    /// The label of a tick.
    pub(super) fn label(&self, value: f64) -> String {
        match self.log {
            true => number(value, value.abs() * 10.0),
            false => number(value, self.range.end - self.range.start),
        }
    }

    /// Where a value stands, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        let place = if self.log {
            (value.max(start) / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        };
        if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (f64::from(limit.0), f64::from(limit.1));
        (from + (to - from) * self.place(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// From the least to the greatest value with a small margin; never empty.
fn even_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let Some((low, high)) = bounds(values) else {
        return 0.0..1.0;
    };
    // One value, or values that differ by rounding only.
    let least = 1e-6 * low.abs().max(high.abs());
    let air = if high - low > least {
        0.03 * (high - low)
    } else {
        least.max(0.5)
    };
    // Where no value is negative, an axis begins at zero or above.
    let start = if low >= 0.0 {
        (low - air).max(0.0)
    } else {
        low - air
    };
    start..high + air
}

/// The same for logarithms: of the values above zero, with the margin as a factor.
fn log_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    // Beyond these a quotient of two is not a number any more.
    let fit = values.filter(|value| (1e-150..1e150).contains(value));
    let Some((low, high)) = bounds(fit) else {
        return 0.1..10.0;
    };
    let air = (high / low).powf(0.03).max(1.1);
    low / air..high * air
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    (low <= high).then_some((low, high))
}

/// Round numbers, evenly.
fn even_ticks(range: &Range<f64>) -> Vec<f64> {
    let rough = (range.end - range.start) / (MOST_TICKS - 1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = step.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (range.start / step).ceil();
    (0..MOST_TICKS)
        .map(|k| (first + k as f64) * step)
        .filter(|tick| tick.is_finite() && range.contains(tick))
        .collect()
}

/// 1, 2, 5, 10, ... or, if those are too many, powers of ten.
fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let decades = (range.end / range.start).log10();
    let digits: &[f64] = match decades {
        ..=3.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let every = (decades as usize / MOST_TICKS + 1).max(1);
    let ticks = powers.step_by(every);
    ticks
        .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
        .filter(|tick| range.contains(tick))
        .collect()
}

/// A label with as many digits as `span`, the width of the axis, needs.
fn number(value: f64, span: f64) -> String {
    // Rounding of the steps leaves things like -1e-17.
    let value = if value.abs() < 1e-9 * span {
        0.0
    } else {
        value
    };
    for (unit, scale, least) in [("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 2e4)] {
        if (least..2e4 * scale).contains(&span) && value != 0.0 {
            return number(value / scale, span / scale) + unit;
        }
    }
    if !(1e-4..1e6).contains(&span) {
        return format!("{value:.2e}");
    }
    let decimals = (1.0 - (span / 10.0).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, values: &[f64]) -> Vec<String> {
        let scale = Scale::of(&axis, values.iter().copied());
        scale.ticks.iter().map(|tick| scale.label(*tick)).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            labels(Axis::Even, &[0.0, 3000.0]),
            ["0", "500", "1000", "1500", "2000", "2500", "3000"]
        );
        assert_eq!(
            labels(Axis::Log, &[90.0, 1.2]),
            ["2", "5", "10", "20", "50", "100"]
        );
        assert_eq!(
            labels(Axis::Log, &[2.3, 0.0004]),
            ["0.001", "0.01", "0.1", "1"]
        );
        assert_eq!(
            labels(Axis::LogAt(vec![1.0, 2.0, 4.0, 8.0]), &[1.0, 4.0]),
            ["1", "2", "4"]
        );
        assert_eq!(
            labels(Axis::Even, &[0.0, 2_000_000.0]).last(),
            Some(&"2M".to_owned())
        );
    }

    #[test]
    fn zero_stands_at_the_low_end_of_a_logarithmic_axis() {
        let scale = Scale::of(&Axis::Log, [0.0, 1.0, 100.0].into_iter());
        assert_eq!(scale.map(&0.0, (300, 0)), 300);
        assert!(scale.map(&1.0, (300, 0)) > scale.map(&10.0, (300, 0)));
    }
}
