//! How long the cluster has trained: what this node's solvers say, and what hellos tell.
//!
//! A node that joins late takes the time of those that train already. So the seconds of a learning
//! curve are those of the job on each of its nodes.
//!
//! Invariant: the time never falls. Once a claim was taken, a later one grows no faster than time
//! does, so that a forged hello moves the clock by [`SLACK_NS`] at most.

/// How far a claim may run ahead of the last one: frames are late by different times, ns.
const SLACK_NS: u64 = 500_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// The clock of training of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trained {
    ns: u64,
    /// The highest claim that was believed, and when, both ns.
    heard: Option<(u64, u64)>,
}

impl Trained {
    /// Solvers of this node have trained for `ns` so far.
    pub(super) fn note_own(&mut self, ns: u64) {
        self.ns = self.ns.max(ns);
    }

    /// Takes the claim of another node's hello.
    pub(super) fn hear(&mut self, now_ns: u64, claim_ms: u32) {
        let claim = u64::from(claim_ms) * NS_PER_MS;
        let believed = self.heard.is_none_or(|(last, at_ns)| {
            let most = last + now_ns.saturating_sub(at_ns) + SLACK_NS;
            // Before training begins there is nothing to measure a claim against.
            last == 0 || (last..=most).contains(&claim)
        });
        if believed {
            self.heard = Some((claim, now_ns));
            self.ns = self.ns.max(claim);
        }
    }

    /// Time of training of the cluster, as far as known here, ns.
    pub(super) fn ns(&self) -> u64 {
        self.ns
    }

    /// The same, for a hello; whole ms, 49 days at most.
    pub(super) fn claim_ms(&self) -> u32 {
        (self.ns / NS_PER_MS).try_into().unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn who_comes_late_takes_the_time_of_the_others() {
        let mut trained = Trained::default();
        trained.hear(S, 0);
        trained.hear(2 * S, 80_000);
        assert_eq!(trained.ns(), 80 * S);
        trained.note_own(S);
        assert_eq!(trained.claim_ms(), 80_000);
        trained.hear(5 * S, 83_000);
        assert_eq!(trained.ns(), 83 * S);
    }

    #[test]
    fn one_false_claim_moves_it_by_the_slack_at_most() {
        let mut trained = Trained::default();
        trained.hear(S, 10_000);
        trained.hear(2 * S, u32::MAX);
        assert_eq!(trained.ns(), 10 * S);
        trained.hear(3 * S, 12_500);
        assert_eq!(trained.ns(), 12 * S + S / 2);
        // A node that is behind takes nothing away.
        trained.hear(4 * S, 1);
        assert_eq!(trained.claim_ms(), 12_500);
    }
}
