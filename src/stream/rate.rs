//! How much of a link the stream gets, as a share of what it once got.
//!
//! Arithmetic over answers: a node that gets less than it did is not alone on its link.

/// Time over which a rate is smoothed, ns.
const RATE_OVER_NS: f64 = 100e6;
/// What is left of the highest rate after each interval in which a queue stood.
const FADES: f64 = 0.95;

/// How many frames of the stream the way carries per time, and how many it once did: our positions,
/// and those of others, which share it with our answers to them. Without those, a node would yield
/// to the other nodes of its own stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    since_ns: u64,
    /// Positions of ours that the network had carried until then, and those that others had sent.
    own: u64,
    others: u64,
    /// Frames per ns, smoothed.
    now: f64,
    most: f64,
}

impl Rate {
    /// Notes that `own` positions were carried since the start, and that others had sent `others`.
    pub(super) fn note(&mut self, now_ns: u64, own: u64, others: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        self.since_ns = now_ns;
        let frames = own.saturating_sub(self.own) + others.saturating_sub(self.others);
        (self.own, self.others) = (own, others);
        // Rounds are as long as a window: the longer one took, the more it says.
        let weight = (passed_ns as f64 / RATE_OVER_NS).min(1.0);
        self.now += weight * (frames as f64 / passed_ns as f64 - self.now);
        self.most = self.most.max(self.now);
    }

    /// The present rate as a share of the highest.
    pub(super) fn share(self) -> f64 {
        if self.most > 0.0 {
            self.now / self.most
        } else {
            1.0
        }
    }

    /// A queue stood for long: it may be the link that is slower now.
    pub(super) fn fade(&mut self) {
        self.most *= FADES;
    }

    /// Forgets what was before: the present rate is the highest.
    pub(super) fn begin_again(&mut self) {
        self.most = self.now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Feeds one round per ms, each with so many positions of ours and of others.
    fn run(rate: &mut Rate, from_ms: u64, rounds: u64, ours: u64, others: u64) -> f64 {
        for round in 1..=rounds {
            let so_far = [rate.own + ours, rate.others + others];
            rate.note((from_ms + round) * MS, so_far[0], so_far[1]);
        }
        rate.share()
    }

    /// What was seen in front of a queue that has been drained says nothing of what may be had now.
    #[test]
    fn after_a_drain_the_present_rate_is_the_highest() {
        let mut rate = Rate::default();
        run(&mut rate, 0, 1000, 100, 0);
        let share = run(&mut rate, 1000, 1000, 20, 0);
        assert!((0.19..0.21).contains(&share), "{share}");
        rate.begin_again();
        assert_eq!(rate.share(), 1.0);
        // Less than that is yielded to again, more is the new measure.
        let share = run(&mut rate, 2000, 1000, 10, 0);
        assert!((0.49..0.51).contains(&share), "{share}");
        assert_eq!(run(&mut rate, 3000, 1000, 40, 0), 1.0);
    }

    /// A node whose positions are displaced by answers to another's must not make way for those:
    /// both would be its own stream's, and it would end with next to no positions.
    #[test]
    fn a_node_does_not_yield_to_the_others_of_its_stream() {
        let mut rate = Rate::default();
        assert_eq!(run(&mut rate, 0, 1000, 50, 50), 1.0);
        let share = run(&mut rate, 1000, 1000, 5, 95);
        assert!(share > 0.99, "{share}");
        // Something else takes half of the link: that is yielded to.
        let share = run(&mut rate, 2000, 1000, 5, 45);
        assert!((0.49..0.52).contains(&share), "{share}");
    }
}
