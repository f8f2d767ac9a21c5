//! The rate that a component keeps: how much of it may be sent by now.
//!
//! Arithmetic only: time and what has gone are arguments. Invariants: on average no more goes than
//! the rate, whatever the size of what goes at once. Budget that was not used is lost, but for a
//! short burst. What went too much (a hello that could not wait) is not paid back for longer than
//! that burst either.

use std::time::Duration;

use dogwild_net::Room;
use dogwild_net::bucket::Bucket;

/// How much may be sent by now: a budget in bytes that grows with time.
pub(super) struct Pace {
    bytes_per_ns: f64,
    budget: Bucket,
    seen_bytes: u64,
}

impl Pace {
    /// Longest time whose unused budget is kept, and whose debt is paid back, ns: what a process
    /// that the scheduler left out for some turns has to answer at once.
    const BURST_NS: f64 = 20_000_000.0;
    /// Frames that the budget holds in any case, so that frames of different kinds can share a low
    /// rate.
    const BURST_FRAMES: f64 = 8.0;

    pub(super) fn new(rate_bytes_per_s: f64) -> Self {
        Self {
            bytes_per_ns: rate_bytes_per_s / 1e9,
            budget: Bucket::new(rate_bytes_per_s, 0.0, 0.0),
            seen_bytes: 0,
        }
    }

    /// Notes that `sent_bytes` have gone in all by `now_ns`, in frames of up to `frame_len` bytes.
    pub(super) fn note(&mut self, now_ns: u64, sent_bytes: u64, frame_len: usize) {
        let frames = Self::BURST_FRAMES * frame_len as f64;
        self.budget
            .set_burst(frames.max(Self::BURST_NS * self.bytes_per_ns));
        self.budget.refill(now_ns);
        self.budget
            .take(sent_bytes.saturating_sub(self.seen_bytes) as f64);
        self.seen_bytes = sent_bytes;
    }

    /// How many frames of `frame_len` bytes the budget allows, after `since` bytes that have gone
    /// since it was noted. One is never more than the budget holds: copies for many nodes would be.
    pub(super) fn room(&self, since: u64, frame_len: usize) -> Room {
        let budget = self.after(since);
        budget.room((frame_len as f64).min(budget.burst()))
    }

    /// Whether `bytes` may go.
    pub(super) fn may_send(&self, since: u64, bytes: usize) -> bool {
        self.room(since, bytes).now > 0
    }

    fn after(&self, since: u64) -> Bucket {
        let mut budget = self.budget;
        budget.take(since as f64);
        budget
    }

    /// Frames (chunks) of `frame_len` bytes that may go now, `sent_bytes` having gone in all. The
    /// last one may be more than the budget: it is paid for later.
    #[cfg(any(test, feature = "caffe"))]
    pub(super) fn frames(&mut self, now_ns: u64, sent_bytes: u64, frame_len: usize) -> usize {
        self.note(now_ns, sent_bytes, frame_len);
        (self.budget.tokens() / frame_len as f64).ceil() as usize
    }

    /// Time until `bytes` may go.
    pub(super) fn wait(&self, bytes: usize) -> Duration {
        self.budget.wait(bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What a process that was stopped for five seconds had piled up, answered at once: 2 MB at 4
    /// MB/s.
    #[test]
    fn a_debt_is_bounded() {
        let mut pace = Pace::new(4e6);
        pace.note(MS, 0, 1472);
        pace.note(5001 * MS, 2_000_000, 1472);
        assert_eq!(pace.frames(5001 * MS, 2_000_000, 1472), 0);
        let wait = pace.wait(1472);
        assert!(wait <= Duration::from_millis(21), "{wait:?}");
        assert!(pace.frames(5022 * MS, 2_000_000, 1472) > 0);
    }

    #[test]
    fn no_more_than_the_rate_goes_on_average() {
        for frame_len in [100, 1472, 8972] {
            let mut pace = Pace::new(4e6);
            let mut sent = 0;
            for ms in 1..=2000 {
                let frames = pace.frames(ms * MS, sent, frame_len) as u64;
                sent += frames * frame_len as u64;
            }
            let most = 8e6 + 0.02 * 4e6;
            assert!((7.9e6..most).contains(&(sent as f64)), "{sent}");
        }
    }

    #[test]
    fn a_rested_budget_holds_one_burst() {
        let mut pace = Pace::new(4e6);
        pace.note(3_600_000 * MS, 0, 1000);
        assert_eq!(pace.room(0, 1000), Room { now: 80, most: 80 });
        assert_eq!(pace.room(79_500, 1000), Room { now: 0, most: 80 });
        assert_eq!(pace.wait(1000), Duration::ZERO);
    }
}
