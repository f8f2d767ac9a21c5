//! A token bucket: tokens come at a rate, and no more than one burst of them is saved up.
//!
//! Arithmetic only: time is an argument. A token is what the caller counts in: a byte, a frame.
//!
//! Invariants:
//! - Who takes only what is there takes no more than `rate * t + burst` over any stretch of time
//!   `t`.
//! - A debt (more was taken than was there) is no larger than one burst either.
//! - A clock that goes back earns nothing twice.

use std::time::Duration;

use crate::outbox::Room;

/// Rate, size and content of a bucket, in tokens.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    per_ns: f64,
    burst: f64,
    tokens: f64,
    seen_ns: u64,
}

impl Bucket {
    /// A bucket that holds `tokens` at time 0. A rate that is negative or not a number gives none
    /// after them.
    #[must_use]
    pub fn new(tokens_per_s: f64, burst: f64, tokens: f64) -> Self {
        Bucket {
            per_ns: tokens_per_s.max(0.0) / 1e9,
            burst,
            tokens,
            seen_ns: 0,
        }
    }

    /// Adds what has come by `now_ns`.
    #[inline]
    pub fn refill(&mut self, now_ns: u64) {
        // An infinite rate times no time is not a number.
        if now_ns > self.seen_ns {
            let earned = (now_ns - self.seen_ns) as f64 * self.per_ns;
            self.tokens = (self.tokens + earned).min(self.burst);
            self.seen_ns = now_ns;
        }
    }

    /// Takes tokens, whether they are there or not.
    #[inline]
    pub fn take(&mut self, tokens: f64) {
        self.tokens = (self.tokens - tokens).max(-self.burst);
    }

    /// Tokens that are there; negative: a debt.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.tokens
    }

    /// Tokens that are saved up at most.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// Saves up to `burst` tokens from now on.
    pub fn set_burst(&mut self, burst: f64) {
        self.burst = burst;
    }

    /// How many frames of `tokens` each may go: now, and at most at once.
    #[must_use]
    pub fn room(&self, tokens: f64) -> Room {
        // `as` saturates: without a limit any number may go, and with a debt none.
        Room {
            now: (self.tokens / tokens) as usize,
            most: (self.burst / tokens) as usize,
        }
    }

    /// Time from the last [`refill`](Self::refill) until `tokens` are there.
    #[must_use]
    pub fn wait(&self, tokens: f64) -> Duration {
        let missing = tokens - self.tokens;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        // `as` saturates: at a rate of zero they never are.
        Duration::from_nanos((missing / self.per_ns).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_rested_bucket_holds_one_burst_and_no_more() {
        let mut bucket = Bucket::new(1e6, 10_000.0, 0.0);
        bucket.refill(HOUR_NS);
        assert!((bucket.tokens() - 10_000.0).abs() < 1e-9);
        assert_eq!(bucket.room(3_000.0), Room { now: 3, most: 3 });
        bucket.take(10_000.0);
        assert_eq!(bucket.room(3_000.0), Room { now: 0, most: 3 });
        assert_eq!(bucket.wait(1_000.0), Duration::from_millis(1));
        // A clock that were to go back earns nothing twice.
        bucket.refill(0);
        bucket.refill(HOUR_NS);
        assert!(bucket.tokens() == 0.0);
    }

    #[test]
    fn a_debt_is_no_larger_than_one_burst() {
        let mut bucket = Bucket::new(1e6, 10_000.0, 10_000.0);
        bucket.take(1e9);
        assert!((bucket.tokens() + 10_000.0).abs() < 1e-9);
        assert_eq!(bucket.room(1.0).now, 0);
        assert_eq!(bucket.wait(0.0), Duration::from_millis(10));
        bucket.refill(11_000_000);
        assert!((bucket.tokens() - 1_000.0).abs() < 1e-6);
    }

    #[test]
    fn no_limit_is_none_and_no_rate_gives_nothing() {
        let mut endless = Bucket::new(f64::INFINITY, f64::INFINITY, f64::INFINITY);
        endless.refill(0);
        endless.refill(5);
        endless.take(1e300);
        assert_eq!(endless.wait(1e300), Duration::ZERO);
        assert_eq!(endless.room(1.0).now, usize::MAX);
        for rate in [0.0, -1.0, f64::NAN] {
            let mut dry = Bucket::new(rate, 5.0, 0.0);
            dry.refill(HOUR_NS);
            assert!(dry.tokens() == 0.0, "{rate}");
            assert_eq!(dry.wait(1.0), Duration::from_nanos(u64::MAX), "{rate}");
        }
    }
}
