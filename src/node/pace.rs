//! The rate that a component keeps: how much of it may be sent by now.
//!
//! Arithmetic only: time and what has gone are arguments. Invariant: on average no more goes than the rate, whatever the
//! size of what goes at once; what was missed is not made up for, but for a short burst.

use std::time::Duration;

/// How much may be sent by now: a budget in bytes that grows with time.
pub(super) struct Pace {
    bytes_per_ns: f64,
    budget: f64,
    seen_bytes: u64,
    seen_ns: u64,
}

impl Pace {
    /// Longest time whose unused budget is kept, ns.
    const BURST_NS: u64 = 2_000_000;

    pub(super) fn new(rate_bytes_per_s: f64) -> Self {
        Self {
            bytes_per_ns: rate_bytes_per_s / 1e9,
            budget: 0.0,
            seen_bytes: 0,
            seen_ns: 0,
        }
    }

    /// Frames (positions, chunks) of `frame_len` bytes that may go now, `sent_bytes` having gone in all.
    pub(super) fn frames(&mut self, now_ns: u64, sent_bytes: u64, frame_len: usize) -> usize {
        let earned = (now_ns - self.seen_ns) as f64 * self.bytes_per_ns;
        let most = (Self::BURST_NS as f64 * self.bytes_per_ns).max(frame_len as f64);
        self.budget = (self.budget + earned - (sent_bytes - self.seen_bytes) as f64).min(most);
        (self.seen_ns, self.seen_bytes) = (now_ns, sent_bytes);
        if self.budget <= 0.0 {
            0
        } else {
            (self.budget / frame_len as f64).ceil() as usize
        }
    }

    /// Time until something may go.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_nanos(if self.budget > 0.0 {
            0
        } else {
            (-self.budget / self.bytes_per_ns) as u64 + 1
        })
    }
}
