//! An axis of a figure: its range, its ticks, and where a value stands.
//!
//! Invariant: any numbers give a range that is not empty, and any number has a place in it.

use super::spread::short;

/// Ticks on an axis, at most.
const MOST_TICKS: f64 = 6.0;
/// From this ratio of the greatest to the least number on, an axis may be logarithmic.
const WIDE: f64 = 20.0;
/// The same for numbers that were varied: 1, 2, 4, 8 are doubled.
const FAR: f64 = 8.0;

/// How values become places.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    /// What it shows, with its unit.
    pub(crate) label: String,
    /// Places and names of the ticks, in order.
    pub(crate) ticks: Vec<(f64, String)>,
    low: f64,
    high: f64,
    log: bool,
    /// Share of the width that is left free at each end.
    inset: f64,
}

impl Scale {
    /// In even steps.
    pub(crate) fn even(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
        let air = match high - low {
            span if span > 1e-9 * high.abs().max(low.abs()) => 0.04 * span,
            _ => (0.05 * high.abs()).max(1e-9),
        };
        // What is never negative has no room below zero.
        let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        Self::from_to(label, (low - air).max(floor), high + air)
    }

    /// In even steps from zero on; by the logarithm where the numbers differ by a lot.
    pub(crate) fn amount(label: &str, values: impl Iterator<Item = f64> + Clone) -> Self {
        let all = bounds(values.clone());
        match all.filter(|(low, high)| *low > 0.0 && high / low > WIDE) {
            Some((low, high)) => {
                let (low, high) = (low / 1.15, high * 1.15);
                let label = format!("{label} (logarithmic)");
                let ticks = log_ticks(low, high);
                let log = Self {
                    label,
                    ticks,
                    low,
                    high,
                    log: true,
                    inset: 0.0,
                };
                // Less than two ticks do not show what is meant.
                if log.ticks.len() > 1 {
                    log
                } else {
                    Self::even(label_of(&log), values)
                }
            }
            None => Self::even(label, values.chain([0.0])),
        }
    }

    /// The values of a varied number: each has a tick with its own name; `more` have none.
    ///
    /// Numbers far apart are laid out by their logarithm if none is negative. Zero then stands at
    /// the low end.
    pub(crate) fn varied(
        label: &str,
        ticks: Vec<(f64, String)>,
        more: impl Iterator<Item = f64>,
    ) -> Self {
        let numbers: Vec<f64> = ticks.iter().map(|tick| tick.0).chain(more).collect();
        let positive = bounds(numbers.iter().copied().filter(|number| *number > 0.0));
        let all = bounds(numbers.into_iter()).unwrap_or((0.0, 1.0));
        let Some((least, most)) = positive.filter(|(l, m)| all.0 >= 0.0 && m / l >= FAR) else {
            return Self::ticked(label.to_owned(), ticks, all, false);
        };
        if all.0 > 0.0 {
            return Self::ticked(format!("{label} (logarithmic)"), ticks, all, true);
        }
        let gap = (most / least).powf(1.0 / (ticks.len().max(3) - 2) as f64);
        let label = format!("{label} (logarithmic, 0 at the left)");
        Self::ticked(label, ticks, (least / gap, most), true)
    }

    /// Things that are no numbers, one after the other.
    pub(crate) fn categories(label: &str, ticks: Vec<(f64, String)>) -> Self {
        let all = bounds(ticks.iter().map(|tick| tick.0)).unwrap_or((0.0, 1.0));
        Self::ticked(label.to_owned(), ticks, all, false)
    }

    fn ticked(label: String, ticks: Vec<(f64, String)>, all: (f64, f64), log: bool) -> Self {
        let (low, high) = all;
        let high = if high > low { high } else { low + 1.0 };
        let inset = 0.06;
        Self {
            label,
            ticks,
            low,
            high,
            log,
            inset,
        }
    }

    fn from_to(label: &str, low: f64, high: f64) -> Self {
        let label = label.to_owned();
        let ticks = even_ticks(low, high);
        Self {
            label,
            ticks,
            low,
            high,
            log: false,
            inset: 0.0,
        }
    }

    /// Where a value stands, from 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let place = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        let place = if place.is_finite() {
            place.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.inset + place * (1.0 - 2.0 * self.inset)
    }
}

fn label_of(scale: &Scale) -> &str {
    scale.label.trim_end_matches(" (logarithmic)")
}

/// Least and most of the finite ones.
pub(crate) fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.abs() < 1e300);
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    (low <= high).then_some((low, high))
}

fn even_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let rough = (high - low) / MOST_TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil();
    let ticks = (0..=MOST_TICKS as usize).map(|k| (first + k as f64) * step);
    let ticks = ticks.filter(|tick| (low..=high).contains(tick));
    ticks
        .map(|tick| (tick, name(tick, step, high.abs().max(low.abs()))))
        .collect()
}

fn log_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let decades = (high / low).log10();
    let digits: &[f64] = if decades < 2.5 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let every = (decades / MOST_TICKS) as usize + 1;
    let powers = (low.log10().floor() as i32..=high.log10().ceil() as i32).step_by(every);
    let ticks = powers.flat_map(|power| digits.iter().map(move |d| d * 10f64.powi(power)));
    let ticks = ticks.filter(|tick| (low..=high).contains(tick));
    ticks.map(|tick| (tick, name(tick, tick, tick))).collect()
}

/// A tick's number, exact to `step`, in the unit that `most` has.
fn name(value: f64, step: f64, most: f64) -> String {
    let units = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    let unit = units.into_iter().find(|(_, unit)| most >= 10.0 * unit);
    let (sign, unit) = unit.unwrap_or(("", 1.0));
    let decimals = (-(step / unit).log10().floor()).clamp(0.0, 8.0) as usize;
    match value.abs() < step * 1e-6 {
        true => "0".to_owned(),
        false => short(value / unit, decimals) + sign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| &*tick.1).collect()
    }

    #[test]
    fn ticks_are_round() {
        let even = Scale::even("", [0.0, 60_000.0].into_iter());
        assert_eq!(names(&even), ["0", "20k", "40k", "60k"]);
        let log = Scale::amount("", [0.02, 2.0].into_iter());
        assert_eq!(names(&log), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]);
        let one = Scale::even("", [96.0].into_iter());
        assert!(one.place(96.0) > 0.4 && one.place(96.0) < 0.6);
    }

    #[test]
    fn zero_stands_at_the_low_end_of_a_logarithmic_axis() {
        let values = [0.0, 0.01, 0.1, 0.5].map(|value| (value, value.to_string()));
        let scale = Scale::varied("loss", values.to_vec(), [].into_iter());
        assert_eq!(scale.label, "loss (logarithmic, 0 at the left)");
        assert!(scale.place(0.0) + 0.1 < scale.place(0.01));
        let values = [1.0, 2.0, 3.0].map(|value| (value, value.to_string()));
        assert_eq!(
            Scale::varied("nodes", values.to_vec(), [].into_iter()).label,
            "nodes"
        );
    }
}
