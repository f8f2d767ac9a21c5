//! Round trips as files of HdrHistogram's own form (`.hgrm`), which its plotters read: one for each
//! load.
//!
//! Touches the folder it is told, which it makes.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::super::pings::Pings;
use super::Outcome;

impl Outcome {
    /// Writes a file for each distribution that there is.
    pub(crate) fn write_hgrm(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--hgrm {}: cannot be made", folder.display()))?;
        let write = |name: String, pings: &Pings| {
            let path = folder.join(name);
            std::fs::write(&path, text(pings)).with_context(|| {
                format!(
                    "{}: cannot be written; is the folder writable and not full?",
                    path.display()
                )
            })
        };
        match self {
            Self::Ping(pings) => write("ping.hgrm".into(), pings),
            Self::Latency(latency) => latency.loads.iter().try_for_each(|load| {
                let mut pings = load.run.pings.iter();
                let name = format!("load-{}.hgrm", load.per_cent);
                pings.try_for_each(|pings| write(name.clone(), pings))
            }),
            Self::Send(_) | Self::Sweep(_) => Ok(()),
        }
    }
}

/// The distribution in µs.
fn text(pings: &Pings) -> String {
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    for &(us, quantile, count) in &pings.distribution {
        let _ = write!(text, "{us:12.3} {quantile:2.12} {count:10}");
        // The last row has no odds.
        let _ = match quantile < 1.0 {
            true => writeln!(text, " {:14.2}", 1.0 / (1.0 - quantile)),
            false => writeln!(text),
        };
    }
    let Pings {
        mean_us,
        deviation_us,
        max_us,
        received,
        ..
    } = pings;
    let _ = write!(
        text,
        "#[Mean    = {mean_us:12.3}, StdDeviation   = {deviation_us:12.3}]\n\
         #[Max     = {max_us:12.3}, Total count    = {received:12}]\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::pings::histogram;
    use super::*;

    #[test]
    fn a_file_has_the_rows_and_the_end_that_plotters_read() {
        let mut times = histogram().expect("a histogram");
        for us in 1..=100_u64 {
            times.record(us * 1000).expect("recorded");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let outcome = Outcome::Ping(Pings::of(64, 100, &times));
        outcome.write_hgrm(folder.path()).expect("written");
        let file = folder.path().join("ping.hgrm");
        let text = std::fs::read_to_string(file).expect("a file");
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| {
                let words = line.split_whitespace();
                words.map(|word| word.parse().expect("a number")).collect()
            })
            .collect();
        assert!(rows.len() > 10, "{text}");
        assert!(rows.is_sorted_by(|a, b| a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2]));
        for row in &rows {
            // Of 100 round trips of 1 to 100 µs, so many took at most as many µs.
            assert!((row[0] - row[2]).abs() < 0.2, "{row:?}");
            assert!(row[2] / 100.0 >= row[1] - 1e-9, "{row:?}");
        }
        let last = rows.last().expect("a row");
        assert_eq!((last.len(), last[2] as u64), (3, 100), "{text}");
        assert!(text.contains("#[Max     =") && text.contains("Total count    =          100]"));
    }
}
