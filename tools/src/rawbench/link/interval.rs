//! What went over a link in one interval: `-i`. As a line like those of iperf3, and as JSON.
//!
//! Invariant: a sum is told when each of its streams is in, and holds what they hold.

use serde::{Deserialize, Serialize};

use super::report::Report;

/// Which way frames went, as seen from the end that drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    There,
    Back,
}

/// Counts of an interval. What arrived is what arrived of the frames that were sent in it, whenever
/// it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// Number of the stream, or of the receiver, from 1; none: all streams together.
    pub(crate) id: Option<u32>,
    pub(crate) way: Way,
    /// Not part of the result (`-O`).
    pub(crate) omitted: bool,
    /// From 0, once for what is omitted and once for what counts.
    pub(crate) index: u32,
    pub(crate) start_s: f64,
    pub(crate) end_s: f64,
    pub(crate) frame_bytes: usize,
    pub(crate) sent: u64,
    /// None without a receiver.
    pub(crate) received: Option<u64>,
    /// Of payload: received, or sent where there is no receiver.
    pub(crate) bits_per_s: f64,
    pub(crate) lost_share: Option<f64>,
}

/// A line of JSON with `-i`, named as those of `iperf3 --json-stream`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub(crate) enum Event {
    Interval(Interval),
    End(Box<Report>),
}

impl Event {
    /// As a line.
    pub(crate) fn say(&self) -> anyhow::Result<()> {
        dogwild_lab::say!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

impl Interval {
    /// Sets the figures that follow from the counts.
    pub(crate) fn figured(mut self) -> Self {
        let frames = self.received.unwrap_or(self.sent) as f64;
        let bits = frames * self.frame_bytes as f64 * 8.0;
        self.bits_per_s = bits / (self.end_s - self.start_s).max(1e-9);
        self.lost_share = self
            .received
            .map(|received| self.sent.saturating_sub(received) as f64 / self.sent.max(1) as f64);
        self
    }

    /// The heading of the lines.
    pub(crate) const HEADING: &str =
        "[ ID][Way]    Interval            Transfer     Bitrate         Lost/Total Frames";

    /// As a line of iperf3.
    pub(crate) fn line(&self) -> String {
        let id = self.id.map_or("SUM".to_owned(), |id| format!("{id:3}"));
        let way = match self.way {
            Way::There => "there",
            Way::Back => "back",
        };
        let frames = self.received.unwrap_or(self.sent) as f64;
        let lost = self
            .received
            .map_or(format!("-/{}", self.sent), |received| {
                let lost = self.sent.saturating_sub(received);
                let per_cent = self.lost_share.unwrap_or(0.0) * 100.0;
                format!("{lost}/{} ({} %)", self.sent, digits(per_cent))
            });
        format!(
            "[{id}][{way:5}] {:7.2}-{:<7.2} s  {:>11}  {:>15}  {lost}{}",
            self.start_s,
            self.end_s,
            scaled(frames * self.frame_bytes as f64, 1024.0, "Bytes"),
            scaled(self.bits_per_s, 1000.0, "bits/s"),
            if self.omitted { "  (omitted)" } else { "" },
        )
    }
}

/// Three digits at least, as iperf3 writes numbers.
fn digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn scaled(mut value: f64, step: f64, unit: &str) -> String {
    let mut prefix = "";
    for next in ["K", "M", "G", "T"] {
        if value < step {
            break;
        }
        value /= step;
        prefix = next;
    }
    format!("{} {prefix}{unit}", digits(value))
}

/// Adds the intervals of parallel streams up.
#[derive(Debug)]
pub(crate) struct Sums {
    streams: usize,
    open: Vec<Interval>,
}

impl Sums {
    pub(crate) fn new(streams: usize) -> Self {
        let open = Vec::new();
        Self { streams, open }
    }

    /// Takes the interval of one stream, and returns the sum if it was the last one.
    pub(crate) fn add(&mut self, one: &Interval) -> Option<Interval> {
        if self.streams < 2 {
            return None;
        }
        self.open.push(one.clone());
        let key = |of: &Interval| (of.way == Way::Back, of.omitted, of.index);
        let same = |other: &Interval| key(other) == key(one);
        if self.open.iter().filter(|other| same(other)).count() < self.streams {
            return None;
        }
        let (mut parts, rest) = std::mem::take(&mut self.open).into_iter().partition(same);
        self.open = rest;
        Self::sum(&mut parts)
    }

    fn sum(parts: &mut Vec<Interval>) -> Option<Interval> {
        let mut sum = parts.pop()?;
        sum.id = None;
        for part in parts {
            sum.start_s = sum.start_s.min(part.start_s);
            sum.end_s = sum.end_s.max(part.end_s);
            sum.sent += part.sent;
            sum.received = sum.received.zip(part.received).map(|(a, b)| a + b);
        }
        Some(sum.figured())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(id: u32, index: u32, sent: u64, received: Option<u64>) -> Interval {
        Interval {
            id: Some(id),
            way: Way::There,
            omitted: false,
            index,
            start_s: f64::from(index),
            end_s: f64::from(index) + 1.0,
            frame_bytes: 1250,
            sent,
            received,
            bits_per_s: 0.0,
            lost_share: None,
        }
        .figured()
    }

    #[test]
    fn a_line_reads_as_those_of_iperf3() {
        let mut one = interval(1, 3, 10_000, Some(9_900));
        assert_eq!(
            one.line(),
            "[  1][there]    3.00-4.00    s  11.8 MBytes     99.0 Mbits/s  100/10000 (1.00 %)"
        );
        one.omitted = true;
        assert!(one.line().ends_with("(omitted)"));
        let alone = interval(1, 0, 100, None);
        assert!(
            alone.line().contains("1.00 Mbits/s  -/100"),
            "{}",
            alone.line()
        );
        assert_eq!(scaled(999.0, 1000.0, "bits/s"), "999 bits/s");
        assert_eq!(scaled(2.5e9, 1000.0, "bits/s"), "2.50 Gbits/s");
        assert_eq!(scaled(0.0, 1024.0, "Bytes"), "0.00 Bytes");
    }

    #[test]
    fn a_sum_comes_with_the_last_stream_and_holds_all() {
        let mut sums = Sums::new(2);
        assert_eq!(sums.add(&interval(1, 0, 100, Some(90))), None);
        assert_eq!(sums.add(&interval(1, 1, 10, Some(10))), None);
        let sum = sums.add(&interval(2, 0, 300, Some(300))).expect("a sum");
        assert_eq!((sum.id, sum.index), (None, 0));
        assert_eq!((sum.sent, sum.received), (400, Some(390)));
        assert!((sum.bits_per_s - 3_900_000.0).abs() < 1e-3);
        assert!(sum.line().starts_with("[SUM]"));
        let sum = sums.add(&interval(2, 1, 10, None)).expect("a sum");
        assert_eq!((sum.sent, sum.received), (20, None));
        assert_eq!(Sums::new(1).add(&interval(1, 0, 1, None)), None);
    }
}
