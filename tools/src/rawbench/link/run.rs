//! What became of a run: counts, rates, and what parallel streams make together.
//!
//! Arithmetic only.

use serde::{Deserialize, Serialize};

use super::interval::Interval;
use super::pings::Pings;
use super::pour::Parts;

/// Frames that went one way.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) lost_share: f64,
    /// Where the chance of a loss lies, by what was lost, with a confidence of 95 %.
    pub(crate) loss_between: [f64; 2],
    pub(crate) received_frames_per_s: f64,
    /// Of payload.
    pub(crate) received_bits_per_s: f64,
}

impl Flow {
    pub(crate) fn of(sent: u64, received: u64, bytes: u64, seconds: f64) -> Self {
        Self {
            sent,
            received,
            lost_share: lost_share(sent, received),
            loss_between: wilson(sent.saturating_sub(received), sent),
            received_frames_per_s: received as f64 / seconds,
            received_bits_per_s: bytes as f64 * 8.0 / seconds,
        }
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.lost_share = lost_share(self.sent, self.received);
        self.loss_between = wilson(self.sent.saturating_sub(self.received), self.sent);
        self.received_frames_per_s += other.received_frames_per_s;
        self.received_bits_per_s += other.received_bits_per_s;
    }
}

/// What became of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) frame_bytes: usize,
    /// No responder counted what arrived.
    pub(crate) alone: bool,
    pub(crate) offered_frames_per_s: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    /// With several receivers: by the one that received the fewest.
    pub(crate) received: u64,
    pub(crate) lost_share: f64,
    /// Where the chance of a loss lies, by what was lost, with a confidence of 95 %.
    #[serde(default)]
    pub(crate) loss_between: [f64; 2],
    pub(crate) sent_frames_per_s: f64,
    pub(crate) received_frames_per_s: f64,
    /// Of payload.
    pub(crate) received_bits_per_s: f64,
    pub(crate) send_cpu_ns_per_frame: f64,
    /// Waiting for frames included.
    pub(crate) receive_cpu_ns_per_frame: f64,
    /// Times that no slot was free.
    pub(crate) no_slot: u64,
    /// System calls that sending took.
    #[serde(default)]
    pub(crate) send_calls: u64,
    /// What the interface counted, where it counts frames one by one (raw Ethernet in a lab).
    #[serde(default)]
    pub(crate) interface_sent_frames_per_s: Option<f64>,
    /// The rate over time.
    pub(crate) parts: Parts,
    /// What went the other way (`--bidir`).
    #[serde(default)]
    pub(crate) back: Option<Flow>,
    /// Each of several parallel streams (`-P`).
    #[serde(default)]
    pub(crate) streams: Vec<Flow>,
    /// Each of several receivers (`--receivers`).
    #[serde(default)]
    pub(crate) receivers: Vec<Flow>,
    /// Each interval (`-i`).
    #[serde(default)]
    pub(crate) intervals: Vec<Interval>,
    /// Round trips in the meantime.
    #[serde(default)]
    pub(crate) pings: Option<Pings>,
}

impl Run {
    /// Frames sent per second by the count that peer tools are held to as well; by our own where
    /// there is none.
    pub(crate) fn sent_by_interface(&self) -> f64 {
        self.interface_sent_frames_per_s
            .unwrap_or(self.sent_frames_per_s)
    }

    /// The way there alone.
    pub(crate) fn there(&self) -> Flow {
        Flow {
            sent: self.sent,
            received: self.received,
            lost_share: self.lost_share,
            loss_between: self.loss_between,
            received_frames_per_s: self.received_frames_per_s,
            received_bits_per_s: self.received_bits_per_s,
        }
    }

    /// Parallel streams as one run. The pings are those of the first.
    pub(crate) fn sum(runs: Vec<Self>) -> Option<Self> {
        let streams: Vec<Flow> = runs.iter().map(Self::there).collect();
        let mut runs = runs.into_iter();
        let mut sum = runs.next()?;
        if streams.len() < 2 {
            return Some(sum);
        }
        for run in runs {
            let cpu = |a: f64, n: u64, b: f64, m: u64| {
                (a * n as f64 + b * m as f64) / (n + m).max(1) as f64
            };
            sum.send_cpu_ns_per_frame = cpu(
                sum.send_cpu_ns_per_frame,
                sum.sent,
                run.send_cpu_ns_per_frame,
                run.sent,
            );
            sum.receive_cpu_ns_per_frame = cpu(
                sum.receive_cpu_ns_per_frame,
                sum.received,
                run.receive_cpu_ns_per_frame,
                run.received,
            );
            let mut there = sum.there();
            there.add(&run.there());
            sum.put(there);
            sum.sent_frames_per_s += run.sent_frames_per_s;
            sum.seconds = sum.seconds.max(run.seconds);
            sum.no_slot += run.no_slot;
            sum.send_calls += run.send_calls;
            let offered = sum.offered_frames_per_s.zip(run.offered_frames_per_s);
            sum.offered_frames_per_s = offered.map(|(a, b)| a + b);
            for (part, other) in sum.parts.iter_mut().zip(&run.parts) {
                part.1 += other.1;
            }
            if let (Some(back), Some(other)) = (&mut sum.back, &run.back) {
                back.add(other);
            }
        }
        sum.streams = streams;
        Some(sum)
    }

    /// Sets the counts of the way there.
    pub(crate) fn put(&mut self, there: Flow) {
        self.sent = there.sent;
        self.received = there.received;
        self.lost_share = there.lost_share;
        self.loss_between = there.loss_between;
        self.received_frames_per_s = there.received_frames_per_s;
        self.received_bits_per_s = there.received_bits_per_s;
    }
}

fn lost_share(sent: u64, received: u64) -> f64 {
    sent.saturating_sub(received) as f64 / sent.max(1) as f64
}

/// The interval of Wilson for the chance of what happened `hits` times of `trials`, 95 %.
fn wilson(hits: u64, trials: u64) -> [f64; 2] {
    const Z: f64 = 1.959_964;
    if trials == 0 {
        return [0.0, 1.0];
    }
    let n = trials as f64;
    let p = hits as f64 / n;
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    [(middle - half).max(0.0), (middle + half).min(1.0)]
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    #[test]
    fn the_interval_holds_the_chance_in_95_of_100() {
        // R: binom::binom.wilson(10, 100).
        let [low, high] = wilson(10, 100);
        assert!((low - 0.055_229).abs() < 1e-5 && (high - 0.174_366).abs() < 1e-5);
        assert_eq!(wilson(0, 0), [0.0, 1.0]);
        let [low, high] = wilson(0, 1000);
        assert!(low < 1e-12 && (0.003..0.004).contains(&high), "{high}");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let held = (0..1000).filter(|_| {
            let hits = (0..500).filter(|_| random.random_bool(0.03)).count();
            let [low, high] = wilson(hits as u64, 500);
            (low..=high).contains(&0.03)
        });
        let held = held.count();
        assert!((920..=980).contains(&held), "{held} of 1000");
    }

    #[test]
    fn streams_add_up() {
        let run = |sent: u64, received: u64, cpu: f64| {
            let mut run = Run {
                seconds: 2.0,
                sent_frames_per_s: sent as f64 / 2.0,
                send_cpu_ns_per_frame: cpu,
                parts: vec![(1.0, 5.0)],
                back: Some(Flow::of(10, 5, 500, 2.0)),
                ..Run::default()
            };
            run.put(Flow::of(sent, received, received * 100, 2.0));
            run
        };
        let sum = Run::sum(vec![run(100, 90, 10.0), run(300, 300, 20.0)]).expect("a run");
        assert_eq!((sum.sent, sum.received), (400, 390));
        assert!((sum.lost_share - 0.025).abs() < 1e-12);
        assert!((sum.received_bits_per_s - 39_000.0 * 4.0).abs() < 1e-6);
        assert!((sum.send_cpu_ns_per_frame - 17.5).abs() < 1e-9);
        assert_eq!(sum.streams.len(), 2);
        assert_eq!(sum.parts, [(1.0, 10.0)]);
        let back = sum.back.expect("both ways");
        assert_eq!((back.sent, back.received), (20, 10));
        let one = Run::sum(vec![run(100, 90, 1.0)]).expect("a run");
        assert!(one.streams.is_empty());
        assert!(Run::sum(Vec::new()).is_none());
    }
}
