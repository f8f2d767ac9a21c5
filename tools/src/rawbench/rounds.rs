//! What benchmarks in rounds share: how often, how even the rounds were, and in which mode of the
//! machine each was measured.

use anyhow::Result;
use clap::builder::RangedI64ValueParser;
use serde::{Deserialize, Serialize};

use super::machine::core_to_core_bytes_per_s;

/// What `--rounds` takes.
pub(crate) fn count() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

/// Measures, and how fast one core reads what the other has just written before and after it.
pub(crate) fn between_core_rates<T>(measure: impl FnOnce() -> Result<T>) -> Result<(T, [f64; 2])> {
    let before = core_to_core_bytes_per_s();
    let measured = measure()?;
    Ok((measured, [before, core_to_core_bytes_per_s()]))
}

/// Where the values of all rounds lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// The mean of the two in the middle if they are an even number.
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Spread {
    /// None if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let below = middle - usize::from(values.len().is_multiple_of(2));
        Some(Self {
            median: f64::midpoint(values[below], values[middle]),
            lowest,
            highest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_in_the_middle_and_at_the_ends() {
        let of = |values: &[f64]| {
            let spread = Spread::of(values.iter().copied())?;
            Some([spread.median, spread.lowest, spread.highest])
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]), Some([2.0, 2.0, 2.0]));
        assert_eq!(of(&[9.0, 1.0, 3.0]), Some([3.0, 1.0, 9.0]));
        assert_eq!(of(&[9.0, 1.0, 4.0, 3.0]), Some([3.5, 1.0, 9.0]));
    }

    #[test]
    fn what_is_measured_comes_back_and_errors_do() {
        let (seven, rates) = between_core_rates(|| Ok(7)).expect("no error");
        assert_eq!(seven, 7);
        assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        let error = between_core_rates::<()>(|| anyhow::bail!("no link"));
        assert_eq!(error.expect_err("an error").to_string(), "no link");
    }
}
