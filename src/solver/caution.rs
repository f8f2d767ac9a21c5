//! Notices that a training begins to diverge, and shortens the steps until it does not.
//!
//! Arithmetic over losses. It compares the loss of the last few batches with that of the last
//! hundred: batches alone do not differ by as much as a quarter of the first loss. That of guessing
//! counts where the first one is less: a solver that joins begins with a small one, and would take
//! noise for a rise. Steps are halved at once, and again after a pause in which that can show;
//! without trouble they grow again little by little.

/// Share of the newest batch in the recent loss, and in the longer mean that it is compared with.
const FAST: f32 = 0.4;
const SLOW: f32 = 0.01;
/// The rise that does not happen by chance, as a share of the first loss, or of that of guessing.
const RISE: f32 = 0.25;
/// Iterations from one change to the next, so that its effect can show.
const PAUSE: u32 = 4;
/// What steps grow by in an iteration without trouble.
const RECOVERY: f32 = 1.01;
/// Steps are never shorter than this.
const LEAST: f32 = 1.0 / 64.0;

/// How careful a solver is.
#[derive(Clone, Debug, PartialEq)]
pub struct Caution {
    /// Loss of who guesses among the classes: their logarithm.
    guessing: f32,
    factor: f32,
    first: Option<f32>,
    fast: f32,
    slow: f32,
    pause: u32,
}

impl Caution {
    /// Words that it is kept in.
    pub const WORDS: usize = 3;

    /// At the beginning, for a net of so many `classes`.
    pub fn new(classes: usize) -> Self {
        Self {
            guessing: (classes as f32).ln(),
            factor: 1.0,
            first: None,
            fast: 0.0,
            slow: 0.0,
            pause: 0,
        }
    }

    /// Where the last process of a solver stopped; words of zeros: at the beginning.
    pub fn from_words(words: [u64; Self::WORDS], classes: usize) -> Self {
        let [factor_first, fast_slow, pause] = words;
        let halves = |word: u64| [word as u32, (word >> 32) as u32].map(f32::from_bits);
        let ([factor, first], [fast, slow]) = (halves(factor_first), halves(fast_slow));
        if !(LEAST..=1.0).contains(&factor) || ![first, fast, slow].iter().all(|x| x.is_finite()) {
            return Self::new(classes);
        }
        Self {
            factor,
            first: Some(first),
            fast,
            slow,
            pause: pause as u32,
            ..Self::new(classes)
        }
    }

    /// What the next process has to know.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let both = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        match self.first {
            Some(first) => [
                both(self.factor, first),
                both(self.fast, self.slow),
                self.pause.into(),
            ],
            None => [0; Self::WORDS],
        }
    }

    /// What steps are multiplied by, 1/64 to 1.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Takes note of a batch's loss. True if steps have just been halved for it.
    pub fn note(&mut self, loss: f32) -> bool {
        let Some(first) = self.first else {
            (self.first, self.fast, self.slow) = (Some(loss), loss, loss);
            return false;
        };
        self.fast += FAST * (loss - self.fast);
        // A falling loss is followed at once: a rise counts from its beginning.
        self.slow = (self.slow + SLOW * (loss - self.slow)).min(self.fast);
        self.pause = self.pause.saturating_sub(1);
        if self.pause > 0 {
            return false;
        }
        let rise = RISE * first.max(self.guessing);
        if self.fast > self.slow + rise && self.factor > LEAST {
            self.factor = (self.factor / 2.0).max(LEAST);
            self.pause = PAUSE;
            return true;
        }
        self.factor = (self.factor * RECOVERY).min(1.0);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds so many losses; how often steps were halved.
    fn run(caution: &mut Caution, losses: impl Iterator<Item = f32>) -> usize {
        losses.filter(|loss| caution.note(*loss)).count()
    }

    #[test]
    fn a_rise_halves_steps_until_it_ends_and_they_grow_again() {
        let mut caution = Caution::new(10);
        let falling = (0..300).map(|i| 2.3 * (-(i as f32) / 60.0).exp() + 0.05);
        assert_eq!(run(&mut caution, falling), 0);
        assert!(run(&mut caution, std::iter::repeat_n(3.0, 60)) >= 2);
        let low = caution.factor();
        assert!(low <= 0.25, "{low}");
        run(&mut caution, std::iter::repeat_n(0.1, 20));
        assert_eq!(run(&mut caution, std::iter::repeat_n(0.1, 600)), 0);
        assert_eq!(caution.factor(), 1.0);
    }

    #[test]
    fn a_loss_that_stays_high_is_taken_for_what_is_in_the_end() {
        let mut caution = Caution::new(10);
        run(&mut caution, std::iter::repeat_n(1.0, 10));
        run(&mut caution, std::iter::repeat_n(2.0, 2000));
        assert_eq!(caution.factor(), 1.0);
    }

    /// A node that joins, or a solver that tested first: others have learned by then.
    #[test]
    fn who_begins_late_takes_no_noise_for_a_rise() {
        let mut caution = Caution::new(10);
        caution.note(0.2);
        let noise = (0..1000).map(|i| if i % 7 < 2 { 0.5 } else { 0.1 });
        assert_eq!(run(&mut caution, noise), 0);
        assert!(run(&mut caution, std::iter::repeat_n(2.3, 20)) >= 1);
    }

    #[test]
    fn it_goes_on_where_it_was_kept() {
        let mut caution = Caution::new(10);
        assert_eq!(Caution::from_words(caution.to_words(), 10), caution);
        assert!(run(&mut caution, [1.0, 3.0, 3.0].into_iter()) > 0);
        assert_eq!(Caution::from_words(caution.to_words(), 10), caution);
        // A file that was damaged.
        assert_eq!(Caution::from_words([u64::MAX; 3], 10), Caution::new(10));
    }

    proptest! {
        /// Batches that differ by a fifth of the first loss are no rise.
        #[test]
        fn noise_is_no_rise(losses in proptest::collection::vec(0.0f32..0.4, 1..2000)) {
            let mut caution = Caution::new(10);
            caution.note(2.3);
            prop_assert_eq!(run(&mut caution, losses.into_iter()), 0);
        }

        #[test]
        fn steps_stay_between_a_sixtyfourth_and_one(losses in proptest::collection::vec(0.0f32..1e6, 1..500)) {
            let mut caution = Caution::new(10);
            for loss in losses {
                caution.note(loss);
                prop_assert!((1.0 / 64.0..=1.0).contains(&caution.factor()));
            }
        }
    }
}
