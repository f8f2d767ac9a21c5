//! The portion of the cluster's iterations that this node makes: what its deltas count for in a
//! mean.
//!
//! Arithmetic over counts. Invariants: above 0 and at most 1; not below 1 / nodes (that are there),
//! so that a slow node's solvers, which step by up to 1 / portion, take no wild steps.
//!
//! The deltas of all nodes, each times its portion, make one mean. A node whose solvers step by
//! 1 / portion walks as fast as the whole cluster will, and is put right when the others' work
//! arrives: so no delay makes the cluster unstable (docs/reference/merging.md).

/// Iterations of this node over which the portion is measured.
const WINDOW: u64 = 8;
/// Share of what is known that the newest window replaces.
const SMOOTHING: f64 = 0.125;

/// The portion and what it was measured from.
#[derive(Clone, Debug)]
pub(super) struct Portion {
    /// Iterations per window, smoothed: of this node, and of all. Each for itself: what others have
    /// made is told in leaps, and a mean of ratios would be too high.
    own: f64,
    all: f64,
    least: f64,
    /// Iterations of this node, and of all, when the window began.
    began: Option<(u64, u64)>,
    /// Whether a window has ended.
    measured: bool,
}

impl Portion {
    /// Before anything is measured all of `nodes` are taken to be alike.
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            own: WINDOW as f64,
            all: WINDOW as f64 * f64::from(nodes),
            least: 1.0 / f64::from(nodes),
            began: None,
            measured: false,
        }
    }

    /// As many nodes are there now: each of them may make its part. As long as nothing is measured
    /// they are taken to be alike.
    pub(super) fn share_among(&mut self, nodes: u16) {
        let nodes = f64::from(nodes.max(1));
        self.least = 1.0 / nodes;
        if !self.measured {
            self.all = self.own * nodes;
        }
    }

    /// The portion, above 0, at most 1.
    pub(super) fn value(&self) -> f32 {
        (self.own / self.all).max(self.least) as f32
    }

    /// Notes that this node has made `own` iterations; `others` says how many the other nodes have
    /// made.
    pub(super) fn note(&mut self, own: u64, others: impl FnOnce() -> u64) {
        if own == 0 {
            return;
        }
        if self.began.is_some_and(|(began, _)| own < began + WINDOW) {
            return;
        }
        let all = own.saturating_add(others());
        if let Some((own_before, all_before)) = self.began.replace((own, all)) {
            let made = (own - own_before) as f64;
            let by_all = (all.saturating_sub(all_before) as f64).max(made);
            self.measured = true;
            self.own += SMOOTHING * (made - self.own);
            self.all += SMOOTHING * (by_all - self.all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds steps of this node, one at a time, with so many of the others for each.
    fn run(portion: &mut Portion, own: std::ops::Range<u64>, others_per_step: u64) {
        for own in own {
            portion.note(own, || own * others_per_step);
        }
    }

    #[test]
    fn it_follows_what_the_others_do() {
        let mut portion = Portion::new(4);
        assert_eq!(portion.value(), 0.25);
        run(&mut portion, 1..200, 3);
        assert!((portion.value() - 0.25).abs() < 1e-3);
        // The others stop.
        let others = 199 * 3;
        for own in 200..800 {
            portion.note(own, || others);
        }
        assert!(portion.value() > 0.99, "{}", portion.value());
    }

    /// A job that two nodes began, and six came later: eighths make one mean, and halves four.
    #[test]
    fn nodes_that_came_later_have_their_part() {
        let mut portion = Portion::new(2);
        run(&mut portion, 1..1000, 7);
        assert_eq!(portion.value(), 0.5);
        portion.share_among(8);
        assert!((portion.value() - 0.125).abs() < 1e-3);
    }

    /// Who comes later begins as one of those who are there, not as one of the first.
    #[test]
    fn who_comes_later_begins_as_one_of_all() {
        let mut portion = Portion::new(2);
        portion.share_among(8);
        assert_eq!(portion.value(), 0.125);
        portion.note(1, || 7);
        portion.share_among(4);
        assert_eq!(portion.value(), 0.25);
        run(&mut portion, 2..1000, 3);
        // It is measured now: who comes changes it as work comes.
        portion.share_among(8);
        assert!((portion.value() - 0.25).abs() < 1e-3);
    }

    #[test]
    fn a_slow_node_counts_no_less_than_one_of_many() {
        let mut portion = Portion::new(4);
        run(&mut portion, 1..1000, 500);
        assert_eq!(portion.value(), 0.25);
    }

    /// What others have made is heard in leaps, one every five windows.
    #[test]
    fn leaps_do_not_bend_it() {
        let mut portion = Portion::new(4);
        let mut values = Vec::new();
        for own in 1..2000u64 {
            portion.note(own, || own / 40 * 40 * 3);
            values.push(portion.value());
        }
        let late = &values[400..];
        let mean = late.iter().sum::<f32>() / late.len() as f32;
        assert!((0.24..0.28).contains(&mean), "{mean}");
    }

    #[test]
    fn nothing_is_measured_before_the_first_iteration_or_from_a_count_that_was_there() {
        let mut portion = Portion::new(2);
        portion.note(0, || unreachable!("not asked"));
        // A node that goes on: a hundred thousand iterations of others are no window.
        portion.note(50, || 100_000);
        assert_eq!(portion.value(), 0.5);
    }
}
