//! The `pace` wrapper: a token bucket on the sending half.
//!
//! Tokens are bytes. They come at the configured rate, up to the size of the bucket. A frame takes
//! its payload and a fixed overhead (headers, gap) out of it. Touches the clock, once per `send`.
//!
//! Invariants:
//! - Over any stretch of time `t`, no more than `rate * t + burst` bytes go, overhead included.
//! - Only frames that the link below took are paid for. A frame that is too long or has nowhere to
//!   go is refused by the link below and not here.
//! - Nothing waits: without tokens `send` returns false (counted as `paced`), and
//!   [`Transmit::ready_in`] says for how long.

use std::io;
use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::{Link, Room, Source, To, Transmit, TransmitStats, Way};

/// Preamble, start delimiter, Ethernet header, check sequence and gap: what a frame of raw Ethernet
/// takes on the cable in addition to its payload, in bytes.
pub const ETHERNET_OVERHEAD_BYTES: usize = 38;

/// The same for UDP over IPv4: [`ETHERNET_OVERHEAD_BYTES`] and 28 bytes of headers.
pub const UDP_OVERHEAD_BYTES: usize = ETHERNET_OVERHEAD_BYTES + 28;

/// Time whose tokens the bucket holds if nothing else is said. Long enough that a loop that
/// oversleeps by a few scheduler ticks loses no tokens.
const BURST_TIME: Duration = Duration::from_millis(5);
/// Full frames that it holds in addition: so that frames of different kinds can share a low rate,
/// there is more than one to choose for.
const BURST_FRAMES: usize = 8;

/// How much may be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceConfig {
    /// Bytes per second, overhead included. Infinite: no limit.
    pub bytes_per_s: f64,
    /// Size of the bucket, in bytes; 0: eight full frames and what comes in 5 ms. Never less than
    /// one full frame, or none could ever go.
    pub burst_bytes: usize,
    /// What each frame costs in addition to its payload, in bytes.
    pub overhead_bytes: usize,
}

impl Default for PaceConfig {
    fn default() -> Self {
        PaceConfig {
            bytes_per_s: f64::INFINITY,
            burst_bytes: 0,
            overhead_bytes: UDP_OVERHEAD_BYTES,
        }
    }
}

/// Wraps the sending half of a link; the receiving half stays as it is.
#[must_use]
pub fn wrap(link: Link, config: &PaceConfig) -> Link {
    Link {
        tx: wrap_transmit(link.tx, config),
        rx: link.rx,
    }
}

fn wrap_transmit(inner: Box<dyn Transmit>, config: &PaceConfig) -> Box<dyn Transmit> {
    Box::new(Paced {
        bucket: bucket(config, inner.mtu()),
        overhead: config.overhead_bytes,
        start: Instant::now(),
        inner,
        paced: 0,
    })
}

/// A full bucket for frames of up to `mtu` bytes.
fn bucket(config: &PaceConfig, mtu: usize) -> Bucket {
    let bytes_per_s = config.bytes_per_s.max(0.0);
    let frame = mtu.saturating_add(config.overhead_bytes) as f64;
    let burst = match config.burst_bytes {
        // A bucket of one frame alone would spill what comes while its loop is late.
        0 => bytes_per_s * BURST_TIME.as_secs_f64() + BURST_FRAMES as f64 * frame,
        bytes => (bytes as f64).max(frame),
    };
    Bucket::new(bytes_per_s, burst, burst)
}

struct Paced {
    inner: Box<dyn Transmit>,
    bucket: Bucket,
    overhead: usize,
    start: Instant,
    paced: u64,
}

impl Paced {
    /// Tokens that a payload of `len` bytes takes.
    fn cost(&self, len: usize) -> f64 {
        len.saturating_add(self.overhead) as f64
    }

    /// Tokens that a full frame to the group takes.
    fn group_cost(&self) -> f64 {
        self.cost(self.inner.mtu()) * self.inner.copies(To::Group) as f64
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The bucket as it is now.
    fn refilled(&self) -> Bucket {
        let mut bucket = self.bucket;
        bucket.refill(self.now_ns());
        bucket
    }
}

impl Transmit for Paced {
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.inner.mtu() {
            return self.inner.send(to, len, fill);
        }
        let cost = self.cost(len) * self.inner.copies(to) as f64;
        self.bucket.refill(self.now_ns());
        // Copies for many nodes may be more than the bucket holds: what lacks is a debt.
        if self.bucket.tokens() < cost.min(self.bucket.burst()) {
            self.paced += 1;
            return false;
        }
        let sent = self.inner.send(to, len, fill);
        if sent {
            self.bucket.take(cost);
        }
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn flush_old(&mut self) -> io::Result<()> {
        self.inner.flush_old()
    }

    fn learn(&mut self, node: u16, source: Source) {
        self.inner.learn(node, source);
    }

    fn set_way(&mut self, node: u16, way: Way) {
        self.inner.set_way(node, way);
    }

    fn forget(&mut self, node: u16) {
        self.inner.forget(node);
    }

    fn copies(&self, to: To) -> usize {
        self.inner.copies(to)
    }

    fn ready_in(&self) -> Duration {
        let bucket = self.refilled();
        let own = bucket.wait(self.group_cost().min(bucket.burst()));
        own.max(self.inner.ready_in())
    }

    fn room(&self) -> Option<Room> {
        let bucket = self.refilled();
        Some(bucket.room(self.group_cost().min(bucket.burst())))
    }

    fn knows(&self, node: u16) -> bool {
        self.inner.knows(node)
    }

    fn stats(&self) -> TransmitStats {
        let below = self.inner.stats();
        TransmitStats {
            paced: below.paced + self.paced,
            ..below
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MTU: usize = 1472;

    /// A link below that takes everything and keeps nothing.
    #[derive(Default)]
    struct Sink(TransmitStats);

    impl Transmit for Sink {
        fn mtu(&self) -> usize {
            MTU
        }
        fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
            if len > MTU {
                self.0.too_long += 1;
                return false;
            }
            if to != To::Group {
                self.0.no_address += 1;
                return false;
            }
            fill(&mut [0; MTU][..len]);
            self.0.frames += 1;
            self.0.bytes += len as u64;
            true
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn learn(&mut self, _: u16, _: Source) {}
        fn knows(&self, _: u16) -> bool {
            false
        }
        fn stats(&self) -> TransmitStats {
            self.0
        }
    }

    fn paced(config: &PaceConfig) -> Box<dyn Transmit> {
        wrap_transmit(Box::<Sink>::default(), config)
    }

    fn at_rate(bits_per_s: f64) -> PaceConfig {
        PaceConfig {
            bytes_per_s: bits_per_s / 8.0,
            ..PaceConfig::default()
        }
    }

    /// Bytes and time of a loop in virtual time that polls every `step_ns` for `seconds`.
    fn virtual_run(config: &PaceConfig, len: usize, step_ns: u64, seconds: u64) -> f64 {
        let mut bucket = bucket(config, MTU);
        let cost = (len + config.overhead_bytes) as f64;
        let mut sent = 0.0;
        for now_ns in (0..=seconds * 1_000_000_000).step_by(step_ns as usize) {
            bucket.refill(now_ns);
            while bucket.tokens() >= cost {
                bucket.take(cost);
                sent += cost;
            }
        }
        sent
    }

    #[test]
    fn the_rate_is_exact_from_one_megabit_to_ten_gigabits() {
        for bits_per_s in [1e6, 3.3e6, 1e7, 1e8, 1e9, 1e10] {
            for (len, step_ns) in [
                (MTU, 50_000),
                (64, 50_000),
                (MTU, 3_000_000),
                (700, 999_983),
            ] {
                let config = at_rate(bits_per_s);
                let seconds = 4;
                let sent = virtual_run(&config, len, step_ns, seconds);
                let earned = bits_per_s / 8.0 * seconds as f64;
                let burst = bucket(&config, MTU).burst();
                assert!(sent <= earned + burst + 1.0, "{bits_per_s} {len} {step_ns}");
                // All that was earned has gone, but for what one frame more would take.
                let rest = (len + config.overhead_bytes) as f64 + bits_per_s / 8e9 * step_ns as f64;
                assert!(
                    sent >= earned + burst - rest - 1.0,
                    "{bits_per_s} {len} {step_ns}"
                );
            }
        }
    }

    /// On the real clock. The bucket holds 300 ms, so that a test that is not scheduled for that
    /// long loses no tokens. It is emptied before the measurement starts.
    #[test]
    fn the_rate_is_kept_on_the_real_clock() {
        for bits_per_s in [1e6, 1e8, 1e10] {
            let config = PaceConfig {
                burst_bytes: (bits_per_s / 8.0 * 0.3) as usize,
                ..at_rate(bits_per_s)
            };
            let opened = Instant::now();
            let mut tx = paced(&config);
            let cost = (MTU + config.overhead_bytes) as f64;
            let burst = config.burst_bytes as f64;
            let send_all = |tx: &mut dyn Transmit| while tx.send(To::Group, MTU, &mut |_| {}) {};
            send_all(&mut *tx);
            let (from, before) = (opened.elapsed(), tx.stats().frames);
            while opened.elapsed() < from + Duration::from_millis(400) {
                send_all(&mut *tx);
                thread::sleep(tx.ready_in().min(Duration::from_millis(20)));
            }
            let until = opened.elapsed();
            send_all(&mut *tx);
            let (upper, frames) = (opened.elapsed(), tx.stats().frames);
            let most = burst + bits_per_s / 8.0 * upper.as_secs_f64();
            assert!(
                frames as f64 * cost <= most + cost,
                "{frames} at {bits_per_s}"
            );
            let earned = bits_per_s / 8.0 * (until - from).as_secs_f64();
            let gone = (frames - before) as f64 * cost;
            // What was left in the bucket when the window began is less than one frame.
            assert!(
                gone + cost >= earned * 0.98,
                "{gone} of {earned} at {bits_per_s}"
            );
            assert!(tx.stats().paced > 0);
        }
    }

    #[test]
    fn a_bucket_smaller_than_a_frame_still_lets_frames_through() {
        let config = PaceConfig {
            burst_bytes: 1,
            overhead_bytes: 66,
            bytes_per_s: 1e9,
        };
        let mut tx = paced(&config);
        assert!(tx.send(To::Group, MTU, &mut |slot| assert_eq!(slot.len(), MTU)));
        thread::sleep(tx.ready_in());
        assert!(tx.send(To::Group, MTU, &mut |_| {}));
    }

    #[test]
    fn overhead_is_paid_for() {
        let config = |overhead_bytes| PaceConfig {
            overhead_bytes,
            ..at_rate(1e7)
        };
        let frames = |overhead, len| {
            let config = config(overhead);
            virtual_run(&config, len, 100_000, 2) / (len + overhead) as f64
        };
        let (bare, paid) = (frames(0, 38), frames(38, 38));
        assert!((bare / paid - 2.0).abs() < 0.01, "{bare} and {paid}");
    }

    #[test]
    fn each_refusal_counts_once_and_costs_nothing() {
        let config = PaceConfig {
            bytes_per_s: 0.0,
            burst_bytes: 2 * MTU,
            overhead_bytes: 0,
        };
        let mut tx = paced(&config);
        assert!(!tx.send(To::Group, MTU + 1, &mut |_| {}));
        assert!(!tx.send(To::Group, usize::MAX, &mut |_| {}));
        assert!(!tx.send(To::Node(1), MTU, &mut |_| {}));
        assert!(tx.send(To::Group, MTU, &mut |_| {}));
        assert_eq!(tx.ready_in(), Duration::ZERO);
        assert!(tx.send(To::Group, MTU, &mut |_| {}));
        assert!(!tx.send(To::Group, 1, &mut |_| panic!("no tokens, no slot")));
        let stats = tx.stats();
        assert_eq!(
            (stats.frames, stats.paced, stats.too_long, stats.no_address),
            (2, 1, 2, 1)
        );
        assert!(
            tx.ready_in() > Duration::from_secs(3600),
            "a rate of nothing"
        );
    }

    #[test]
    fn no_limit_is_none() {
        let mut tx = paced(&PaceConfig::default());
        for _ in 0..100_000 {
            assert!(tx.send(To::Group, MTU, &mut |_| {}));
        }
        assert_eq!(tx.ready_in(), Duration::ZERO);
    }
}
