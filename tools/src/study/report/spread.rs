//! Median and range of what some runs gave, and how numbers are written.
//!
//! Invariant: numbers that are not finite do not count; of none there is no spread.

use serde::Serialize;

/// Median, least and most of `n` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Of an even number the lower of the two in the middle: one that was measured.
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) n: usize,
}

impl Spread {
    /// Of these numbers; `None`: there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        all.sort_by(f64::total_cmp);
        Some(Self {
            median: *all.get(all.len().checked_sub(1)? / 2)?,
            least: *all.first()?,
            most: *all.last()?,
            n: all.len(),
        })
    }

    /// The same in another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            least: self.least * factor,
            most: self.most * factor,
            n: self.n,
        }
    }

    /// `median (least to most)`; of one number only that.
    pub(crate) fn text(&self, decimals: usize) -> String {
        let [median, least, most] =
            [self.median, self.least, self.most].map(|value| fixed(value, decimals));
        match self.n {
            1 => median,
            _ => format!("{median} ({least} to {most})"),
        }
    }

    /// As many decimals as make three digits of the median; none if all are whole numbers.
    pub(crate) fn decimals(&self) -> usize {
        if [self.median, self.least, self.most]
            .iter()
            .all(|value| value.fract() == 0.0)
        {
            return 0;
        }
        decimals(self.median.abs().max(self.most.abs() / 10.0))
    }
}

/// Decimals that show three digits of a number.
pub(crate) fn decimals(value: f64) -> usize {
    if value == 0.0 || !value.is_finite() {
        return 0;
    }
    (2.0 - value.abs().log10().floor()).clamp(0.0, 8.0) as usize
}

/// With that many decimals, and without a sign where nothing but zeros is left.
pub(crate) fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c == '0' || c == '.') => rest.to_owned(),
        _ => text,
    }
}

/// As short as it can be written with that many decimals.
pub(crate) fn short(value: f64, decimals: usize) -> String {
    let text = fixed(value, decimals);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_has_the_lower_of_two_as_median() {
        let spread = Spread::of([4.0, 1.0, f64::NAN, 3.0, 2.0]).expect("four numbers");
        assert_eq!(
            (spread.median, spread.least, spread.most, spread.n),
            (2.0, 1.0, 4.0, 4)
        );
        assert_eq!(spread.text(1), "2.0 (1.0 to 4.0)");
        assert_eq!(Spread::of([f64::INFINITY]), None);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.0, 0.0123, 7.0, 55.0, 1234.0].map(decimals),
            [0, 4, 2, 1, 0]
        );
        assert_eq!(fixed(-0.001, 2), "0.00");
        assert_eq!(short(2.50, 2), "2.5");
        assert_eq!(short(100.0, 0), "100");
    }
}
