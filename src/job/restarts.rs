//! How often something may be started again: so many times in so much time, after longer and longer
//! pauses. Who fails for good is given up; who fails now and then is not. Time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restarts within [`WINDOW`] before it is given up.
pub(super) const MOST: usize = 5;
/// What a restart counts for.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Pause before the first restart of a window; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Restarts so far.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    recent: VecDeque<Instant>,
    total: u32,
}

impl Restarts {
    /// One more, at `now`. Gives the pause before it, or `None` if there were too many.
    pub(super) fn another(&mut self, now: Instant) -> Option<Duration> {
        while let Some(&first) = self.recent.front()
            && now.saturating_duration_since(first) >= WINDOW
        {
            self.recent.pop_front();
        }
        if self.recent.len() >= MOST {
            return None;
        }
        let pause = FIRST_PAUSE * (1 << self.recent.len());
        self.recent.push_back(now);
        self.total += 1;
        Some(pause)
    }

    /// How often in all.
    pub(super) fn total(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_spread_over_time_are_no_reason_to_give_up() {
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        for kill in 0..100 {
            let pause = restarts.another(start + Duration::from_secs(20) * kill);
            assert!(pause.is_some_and(|pause| pause < Duration::from_secs(2)));
        }
        assert_eq!(restarts.total(), 100);
    }

    #[test]
    fn the_sixth_in_a_minute_is_too_many_and_a_later_one_is_not() {
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let pauses: Vec<_> = (0..5).map(|second| restarts.another(at(second))).collect();
        let expected = [200, 400, 800, 1600, 3200].map(|ms| Some(Duration::from_millis(ms)));
        assert_eq!(pauses, expected);
        assert_eq!(restarts.another(at(59)), None);
        assert!(restarts.another(at(60)).is_some());
    }
}
