//! How often to take a snapshot, as a user writes it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// Least and most time between two, s.
const SECONDS: std::ops::RangeInclusive<f64> = 1.0..=604_800.0;

/// What `--snapshot-every` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotEvery {
    /// Iterations of the cluster between two; 0: none while training.
    Iterations(u64),
    /// Time between two.
    Time(Duration),
}

impl FromStr for SnapshotEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is neither iterations (5000; 0: none) nor a time (30s, 10min, 1h)")
        };
        if let Ok(iterations) = text.parse() {
            return Ok(Self::Iterations(iterations));
        }
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let scale = match &text[number.len()..] {
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let seconds = number.parse::<f64>().map_err(|_| wrong())? * scale;
        if SECONDS.contains(&seconds) {
            Ok(Self::Time(Duration::from_secs_f64(seconds)))
        } else {
            Err(format!("`{text}` is not a time of 1s to 168h"))
        }
    }
}

impl fmt::Display for SnapshotEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iterations(iterations) => iterations.fmt(f),
            Self::Time(time) => write!(f, "{}s", time.as_secs_f64()),
        }
    }
}

impl Serialize for SnapshotEvery {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Iterations(iterations) => to.serialize_u64(*iterations),
            Self::Time(_) => to.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_and_times_are_told_apart() {
        let time = |ms| Ok(SnapshotEvery::Time(Duration::from_millis(ms)));
        for (text, wanted) in [
            ("0", Ok(SnapshotEvery::Iterations(0))),
            ("5000", Ok(SnapshotEvery::Iterations(5000))),
            ("30s", time(30_000)),
            ("1.5s", time(1_500)),
            ("10min", time(600_000)),
            ("1h", time(3_600_000)),
        ] {
            assert_eq!(text.parse(), wanted, "{text}");
        }
        for (wrong, words) in [
            ("", "neither"),
            ("often", "neither"),
            ("-3", "neither"),
            ("5m", "10min"),
            ("inf", "neither"),
            ("0s", "1s to"),
            ("infs", "neither"),
            ("NaNs", "neither"),
            ("-1h", "1s to"),
            ("1e9h", "1s to"),
        ] {
            let said = wrong.parse::<SnapshotEvery>().expect_err(wrong);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn iterations_are_a_number_in_the_summary_and_times_a_text() {
        let json = |text: &str| {
            let every: SnapshotEvery = text.parse().expect(text);
            serde_json::to_value(every).expect("JSON")
        };
        assert_eq!(json("50"), 50);
        assert_eq!(json("2min"), "120s");
    }
}
