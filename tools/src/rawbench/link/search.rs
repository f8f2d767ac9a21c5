//! The search for the highest rate without loss: which rate to try next.
//!
//! Arithmetic only. It begins near a guess, moves away from it in steps that double, and halves
//! once the rate is between two that were tried. Invariant: `low` was sent without loss.

/// Trials of a rate before it is refused for a small loss, or because the link held its sender
/// back: one may be another program's doing.
const TRIALS_OF_A_RATE: u32 = 3;
/// Trials of a rate in which this host sent less, before another is tried.
const SHORT_TRIALS: u32 = 3;
/// What this host sent at least where it was only late now and then.
const LATE_SHARE: f64 = 0.98;
/// A loss of this share refuses a rate at once.
const LOSS_REFUSED_AT_ONCE: f64 = 0.05;

/// A search on its way.
#[derive(Debug)]
pub(crate) struct Search {
    low: f64,
    high: f64,
    precision: f64,
    /// How far to move next, as a share.
    step: f64,
    next: f64,
    /// Trials of this rate that did not pass.
    failed: u32,
    /// Trials of it that tell nothing.
    short: u32,
}

impl Search {
    /// Nothing from `ceiling` on is tried; the rate is taken to be near `guess`.
    pub(crate) fn new(ceiling: f64, guess: f64, precision: f64) -> Self {
        Self {
            low: 0.0,
            high: ceiling,
            precision,
            step: precision,
            next: guess.min(ceiling) * (1.0 - precision / 2.0),
            failed: 0,
            short: 0,
        }
    }

    /// The rate to try; none if the search is over.
    pub(crate) fn next(&self) -> Option<f64> {
        let open = self.high - self.low > self.precision * self.high;
        (open && self.next >= 1.0).then_some(self.next)
    }

    /// How often the rate has been tried before.
    pub(crate) fn tried(&self) -> u32 {
        self.failed + self.short
    }

    /// The rate that was tried lost nothing; so much was really sent per second. A link that held
    /// the sender back never loses, whatever it is offered.
    pub(crate) fn passed(&mut self, sent_per_s: f64, held_back: bool) {
        self.low = self.low.max(sent_per_s);
        if sent_per_s < self.next * (1.0 - self.precision / 2.0) {
            self.short += 1;
            let late = !held_back && sent_per_s > self.next * LATE_SHARE;
            match self.short >= SHORT_TRIALS {
                // The link lost nothing: what lacks is only time of this host.
                true if late => {}
                true => return self.fail(true),
                false if held_back => return self.fail(false),
                false => return,
            }
        }
        let farther = self.next * (1.0 + self.step);
        self.step *= 2.0;
        self.go(farther);
    }

    /// The rate that was tried lost this share.
    pub(crate) fn lost(&mut self, share: f64) {
        self.fail(share >= LOSS_REFUSED_AT_ONCE);
    }

    fn fail(&mut self, at_once: bool) {
        self.failed += 1;
        if !at_once && self.failed < TRIALS_OF_A_RATE {
            return;
        }
        self.high = self.high.min(self.next);
        let nearer = match self.low > 0.0 {
            true => self.high,
            false => self.next * (1.0 - self.step.min(0.5)),
        };
        self.step *= 2.0;
        self.go(nearer);
    }

    fn go(&mut self, next: f64) {
        (self.failed, self.short) = (0, 0);
        self.next = match next < self.high {
            true => next,
            false => f64::midpoint(self.low, self.high),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates tried until the search is over, and the highest that passed.
    fn find(link: f64, lost: f64, guess: f64, mut fails: impl FnMut(f64) -> bool) -> (u32, f64) {
        let mut search = Search::new(lost, guess, 0.005);
        let mut trials = 0;
        while let Some(rate) = search.next() {
            trials += 1;
            assert!(trials < 100, "{search:?}");
            if rate > link || fails(rate) {
                search.lost((rate - link).max(0.01 * rate) / rate);
            } else {
                search.passed(rate, false);
            }
        }
        (trials, search.low)
    }

    #[test]
    fn the_rate_of_a_link_is_found_from_any_guess() {
        let link = 8_256.4;
        for guess in [link, 8_000.0, 9_000.0, 5_000.0, 100.0, 60_000.0] {
            for lost in [link * 1.001, 12_000.0, 700_000.0] {
                let (trials, found) = find(link, lost, guess, |_| false);
                assert!(
                    found <= link && found > link * 0.994,
                    "{found} from {guess}, {lost}"
                );
                assert!(trials <= 40, "{trials} trials from {guess}, {lost}");
            }
        }
        let (trials, _) = find(link, 700_000.0, link, |_| false);
        assert!(trials <= 4, "a good guess takes {trials} trials");
    }

    #[test]
    fn a_single_loss_refuses_no_rate_and_loss_everywhere_ends() {
        let mut count = 0;
        let (_, found) = find(5_000.0, 9_000.0, 5_000.0, |_| {
            count += 1;
            count % 3 == 1
        });
        assert!(found > 4_970.0, "{found}");
        let (trials, found) = find(5_000.0, 9_000.0, 5_000.0, |_| true);
        assert!(found == 0.0 && trials < 100);
    }

    #[test]
    fn a_link_that_holds_its_sender_back_is_found_too() {
        let link = 8_256.4;
        let mut search = Search::new(link * 1.15, link * 1.05, 0.005);
        let mut trials = 0;
        while let Some(rate) = search.next() {
            trials += 1;
            assert!(trials < 100, "{search:?}");
            search.passed(rate.min(link), true);
        }
        assert!(
            search.low > link * 0.994 && search.low <= link,
            "{search:?}"
        );
    }

    #[test]
    fn a_sender_that_is_late_is_tried_again_but_not_for_ever() {
        let mut search = Search::new(1000.0, 900.0, 0.01);
        let asked = search.next().expect("a rate");
        for _ in 1..SHORT_TRIALS {
            search.passed(asked * 0.5, false);
            assert!((search.low - asked * 0.5).abs() < 1e-9);
            assert_eq!(search.next(), Some(asked));
        }
        search.passed(asked * 0.5, false);
        assert!(search.next().is_some_and(|next| next < asked));
        // One that is nearly in time does not end the search.
        let mut search = Search::new(1000.0, 900.0, 0.002);
        let asked = search.next().expect("a rate");
        for _ in 0..SHORT_TRIALS {
            search.passed(asked * 0.995, false);
        }
        assert!(search.next().is_some_and(|next| next > asked));
    }
}
