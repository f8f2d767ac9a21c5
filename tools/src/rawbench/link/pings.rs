//! Round trips: when pings leave, and how long each took.
//!
//! Times are of the clock that is given. Invariant: a ping counts from when it was first to leave,
//! so that waiting for a free slot is part of its time.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::packet::{Kind, Packet};

/// Times that are kept to so many digits.
const DIGITS: u8 = 3;
/// Rows of the distribution for each half of what is left.
const ROWS_OF_A_HALF: u32 = 5;
/// Pings that are waited for; of more, the oldest are lost.
const OPEN_MAX: usize = 1 << 16;

/// Round trips.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pings {
    pub(crate) frame_bytes: usize,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) p50_us: f64,
    #[serde(default)]
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) mean_us: f64,
    /// Per cent of the round trips, and the time they took at most, µs.
    pub(crate) percentiles: Vec<(f64, f64)>,
    #[serde(default)]
    pub(crate) deviation_us: f64,
    /// The HDR histogram: µs, the share of the round trips that it stands for, and how many took
    /// no longer. Rows get closer to each other towards the longest.
    #[serde(default)]
    pub(crate) distribution: Vec<(f64, f64, u64)>,
}

impl Pings {
    pub(crate) fn of(frame_bytes: usize, sent: u64, times_ns: &Histogram<u64>) -> Self {
        let us = |quantile: f64| times_ns.value_at_quantile(quantile) as f64 / 1e3;
        let rows = times_ns.iter_quantiles(ROWS_OF_A_HALF).map(|row| {
            let us = row.value_iterated_to() as f64 / 1e3;
            (
                us,
                row.quantile_iterated_to(),
                row.count_since_last_iteration(),
            )
        });
        let steps = (0..=99).map(f64::from).chain([99.5, 99.9, 99.99, 100.0]);
        Self {
            frame_bytes,
            sent,
            received: times_ns.len(),
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: times_ns.max() as f64 / 1e3,
            mean_us: times_ns.mean() / 1e3,
            percentiles: steps
                .map(|per_cent| (per_cent, us(per_cent / 100.0)))
                .collect(),
            deviation_us: times_ns.stdev() / 1e3,
            distribution: sums(rows),
        }
    }
}

/// Counts of single rows as counts of all up to them.
fn sums(rows: impl Iterator<Item = (f64, f64, u64)>) -> Vec<(f64, f64, u64)> {
    let add = |all: &mut u64, (us, quantile, count): (f64, f64, u64)| {
        *all += count;
        Some((us, quantile, *all))
    };
    rows.scan(0, add).collect()
}

/// An empty histogram of ns.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new(DIGITS)?)
}

/// Pings that leave at a rate, answered or not.
#[derive(Debug)]
pub(crate) struct Train {
    every_ns: u64,
    frame_bytes: usize,
    due_ns: u64,
    /// When the next one was first tried.
    tried_ns: Option<u64>,
    /// Those that are not answered: number, and when they left.
    open: Vec<(u64, u64)>,
    sent: u64,
    times_ns: Histogram<u64>,
}

impl Train {
    pub(crate) fn new(pings_per_s: f64, frame_bytes: usize) -> Result<Self> {
        Ok(Self {
            every_ns: (1e9 / pings_per_s).max(1.0) as u64,
            frame_bytes,
            due_ns: 0,
            tried_ns: None,
            open: Vec::new(),
            sent: 0,
            times_ns: histogram()?,
        })
    }

    /// Time until the next one is due, ns.
    pub(crate) fn due_in_ns(&self, now_ns: u64) -> u64 {
        self.due_ns.saturating_sub(now_ns)
    }

    /// The ping that is due, if one is.
    pub(crate) fn next(&mut self, run: u64, now_ns: u64) -> Option<Packet> {
        if now_ns < self.due_ns {
            return None;
        }
        self.tried_ns.get_or_insert(now_ns);
        Some(Packet {
            a: self.sent,
            b: self.frame_bytes as u64,
            c: now_ns,
            ..Packet::ask(Kind::Ping, run)
        })
    }

    /// The one that was due has left.
    pub(crate) fn left(&mut self, now_ns: u64) {
        self.open
            .push((self.sent, self.tried_ns.take().unwrap_or(now_ns)));
        self.sent += 1;
        if self.open.len() > OPEN_MAX {
            self.open.drain(..OPEN_MAX / 2);
        }
        // Those that a pause of this host has kept from leaving are not made up for: they would
        // measure each other.
        self.due_ns = (self.due_ns + self.every_ns).max(now_ns);
    }

    /// An answer has come; one that came before is not counted again.
    pub(crate) fn came(&mut self, answer: &Packet, now_ns: u64) -> Result<()> {
        // From the end: before it are those that were lost.
        let mut open = self.open.iter();
        if let Some(at) = open.rposition(|&(number, _)| number == answer.a) {
            let (_, left_ns) = self.open.remove(at);
            self.times_ns.record(now_ns.saturating_sub(left_ns))?;
        }
        Ok(())
    }

    /// Whether answers may still come.
    pub(crate) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn result(&self) -> Pings {
        Pings::of(self.frame_bytes, self.sent, &self.times_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_counts_from_its_first_try_and_once() {
        let mut train = Train::new(1000.0, 64).expect("a train");
        let first = train.next(9, 5_000).expect("due at once");
        assert_eq!((first.kind, first.run, first.b), (Kind::Ping, 9, 64));
        // No slot was free; it leaves with the second try.
        assert!(train.next(9, 8_000).is_some());
        train.left(8_000);
        assert!(train.next(9, 900_000).is_none());
        assert_eq!(train.due_in_ns(900_000), 100_000);
        assert!(train.next(9, 1_000_000).is_some());
        train.left(1_000_000);
        train.came(&first, 25_000).expect("recorded");
        train.came(&first, 95_000).expect("passed over");
        assert!(train.waits());
        let pings = train.result();
        assert_eq!((pings.sent, pings.received), (2, 1));
        assert!((pings.max_us - 20.0).abs() < 0.1, "{pings:?}");
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut times = histogram().expect("a histogram");
        for us in 1..=1000_u64 {
            times.record(us * 1000).expect("recorded");
        }
        let pings = Pings::of(64, 1001, &times);
        for (said, us) in [
            (pings.p50_us, 500.0),
            (pings.p90_us, 900.0),
            (pings.p99_us, 990.0),
            (pings.p999_us, 999.0),
            (pings.max_us, 1000.0),
        ] {
            assert!((said / us - 1.0).abs() < 0.001, "{said} {us}");
        }
        assert!(pings.percentiles.is_sorted_by(|a, b| a.1 <= b.1));
        assert_eq!(pings.received, 1000);
    }
}
