//! How many iterations other nodes have made: what their frames claim, and what of it is believed.
//!
//! Every frame carries a number, and without a key a host can forge frames. So a claim counts only
//! if *all* frames of the node agree that it is at least that many, over two windows of time in
//! each of which a position of the node was taken; and it grows by a believable rate only. One
//! forged frame, or a thousand between two genuine ones, then change nothing.
//!
//! A node that lost its memory counts from 0 again. What it had made before stays: once it said
//! that it begins a new life, and all its claims were lower for a while, they count on from there.
//!
//! Invariant: what is believed never falls, and is at most [`MOST`].

use std::sync::atomic::Ordering::Relaxed;

use super::Report;
use super::common::Common;

/// A window closes after this time, once a position was taken in it, ns.
const WINDOW_NS: u64 = 20_000_000;
/// The same for a node that streams no range and so sends no positions: it says hello at least
/// twice in this time, ns.
pub(super) const HELLOS_NS: u64 = 1_200_000_000;
/// Time in which all solvers of a node together make an iteration at the fastest, ns.
pub(super) const ITERATION_NS: u64 = 1_000;
/// Claims of a new life that are lower for so long count on, ns: a node that lives says hello twice
/// in this time, so one whose claims are forged has denied them.
const ANEW_NS: u64 = 1_000_000_000;
/// More iterations than any node makes: a million a second for nine years. Sums of it do not
/// overflow.
const MOST: u64 = 1 << 48;

/// What one node has claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claims {
    /// Lowest and highest claim of the open window.
    low: u64,
    high: u64,
    /// Lowest claim of the window before.
    low_before: u64,
    /// When the open window began, ns; 0: none was closed yet. And when the one before it began.
    began_ns: u64,
    before_ns: u64,
    /// What the node had made by then, ns, is believed.
    known_ns: u64,
    /// Iterations of former lives.
    before: u64,
    /// Whether a new life has begun, and since when all claims are lower, ns (0: they are not).
    anew: bool,
    lower_ns: u64,
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            low: u64::MAX,
            high: 0,
            low_before: u64::MAX,
            began_ns: 0,
            before_ns: 0,
            known_ns: 0,
            before: 0,
            anew: false,
            lower_ns: 0,
        }
    }
}

impl Claims {
    /// Takes the claim of a frame.
    #[inline]
    pub(super) fn hear(&mut self, iterations: u64) {
        let all = iterations.saturating_add(self.before);
        self.low = self.low.min(all);
        self.high = self.high.max(all);
    }

    /// Whether all is believed that the node had made by `when_ns`.
    pub(super) fn known_since(&self, when_ns: u64) -> bool {
        self.known_ns >= when_ns
    }

    /// Iterations of former lives: kept in the state file.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    pub(super) fn set_before(&mut self, before: u64) {
        self.before = before;
    }

    /// The node says that it begins a new life.
    pub(super) fn begin_anew(&mut self) {
        self.anew = true;
    }

    /// Others tell what the present life of the node came after. Returns what it has made in all,
    /// as far as it has claimed that for long enough.
    pub(super) fn learn_before(&mut self, before: u64) -> u64 {
        let more = before.saturating_sub(self.before);
        if more > 0 {
            for claim in [&mut self.low, &mut self.low_before] {
                *claim = claim.saturating_add(more);
            }
            // Higher by as much, unless there was no claim yet.
            if self.high > 0 {
                self.high = self.high.saturating_add(more);
            }
            (self.before, self.anew, self.lower_ns) = (before, false, 0);
        }
        // One frame, or none, is no window.
        match self.low_before {
            u64::MAX => self.before,
            _ => self.low.min(self.low_before).min(MOST),
        }
    }

    /// Counts on from `believed` where a new life counts from 0.
    fn count_on(&mut self, now_ns: u64, believed: u64) {
        if !self.anew || self.high >= believed {
            self.lower_ns = 0;
        } else if self.lower_ns == 0 {
            self.lower_ns = now_ns;
        } else if now_ns - self.lower_ns >= ANEW_NS {
            let more = believed - self.before;
            for claim in [&mut self.low, &mut self.high, &mut self.low_before] {
                *claim = claim.saturating_add(more);
            }
            (self.before, self.anew, self.lower_ns) = (believed, false, 0);
        }
    }

    /// Closes the window. Returns what is believed from now on, and the highest claim if that was
    /// too high to be true.
    fn close(&mut self, now_ns: u64, believed: u64) -> (u64, Option<u64>) {
        let first = self.began_ns == 0;
        self.count_on(now_ns, believed);
        let (low, high) = (self.low, self.high);
        let confirmed = low.min(self.low_before);
        // A node may have trained for days before we began: the first claim is not measured
        // against ours.
        let base = if first { low } else { believed };
        let time_ns = if first {
            WINDOW_NS
        } else {
            now_ns.saturating_sub(self.began_ns)
        };
        let most = base.saturating_add(time_ns / ITERATION_NS).min(MOST);
        // Frames of both windows say at least what the node had made when the first one began.
        let known_ns = if confirmed <= most && self.lower_ns == 0 {
            self.before_ns
        } else {
            self.known_ns
        };
        *self = Self {
            low_before: low,
            began_ns: now_ns,
            before_ns: self.began_ns,
            known_ns,
            low: u64::MAX,
            high: 0,
            ..*self
        };
        let believed = believed.max(confirmed.min(most));
        (believed, (high > most).then_some(high))
    }
}

/// When claims are looked at next.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimWindows {
    due_ns: u64,
}

impl ClaimWindows {
    /// Looks at what other nodes claim, when it is time, or this node has just become ready:
    /// solvers start then, and their rate follows the iterations of all.
    pub(super) fn poll(&mut self, now_ns: u64, common: &mut Common<'_>, just_ready: bool) {
        if now_ns < self.due_ns && !just_ready {
            return;
        }
        self.due_ns = now_ns + WINDOW_NS;
        for node in common.others() {
            let streams = common.has_lease(node);
            let peer = &mut common.peers[usize::from(node)];
            let began_ns = peer.claims.began_ns;
            let (spoke_ns, open_ns) = if streams {
                (peer.streamed_ns, 0)
            } else {
                (peer.heard_ns, HELLOS_NS)
            };
            if spoke_ns <= began_ns || now_ns - began_ns < open_ns {
                continue;
            }
            let (believed, too_high) = peer.claims.close(now_ns, peer.iterations);
            peer.iterations = believed;
            let before = &common.state.node(node).iterations_before;
            before.store(peer.claims.before(), Relaxed);
            if let Some(claimed) = too_high {
                common.counters.refused_claims += 1;
                common.report(Report::Iterations {
                    node,
                    claimed,
                    believed,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_claim_is_believed_however_high_and_then_only_a_believable_growth() {
        let mut claims = Claims::default();
        claims.hear(5_000_000);
        assert_eq!(claims.close(WINDOW_NS, 0), (5_000_000, None));
        // Genuine frames go on between forged ones.
        for i in 0..100 {
            claims.hear(5_000_000 + i);
            claims.hear(u64::MAX - i);
        }
        let (believed, too_high) = claims.close(2 * WINDOW_NS, 5_000_000);
        assert_eq!((believed, too_high), (5_000_000, Some(u64::MAX)));
        // Only forged ones: nothing in the first window, a million a second in the next.
        claims.hear(u64::MAX);
        assert_eq!(claims.close(3 * WINDOW_NS, believed).0, 5_000_000);
        claims.hear(u64::MAX);
        assert_eq!(claims.close(4 * WINDOW_NS, believed).0, 5_020_000);
    }

    #[test]
    fn what_is_known_by_when_takes_two_windows() {
        let mut claims = Claims::default();
        claims.hear(100);
        let mut believed = claims.close(WINDOW_NS, 0).0;
        claims.hear(110);
        claims.hear(150);
        let end_ns = 2 * WINDOW_NS - 1;
        for window in 2..5 {
            assert!(!claims.known_since(end_ns), "{believed}");
            believed = claims.close(window * WINDOW_NS, believed).0;
            claims.hear(150);
        }
        believed = claims.close(5 * WINDOW_NS, believed).0;
        assert!(claims.known_since(end_ns) && believed == 150);
    }

    #[test]
    fn a_new_life_counts_on_and_only_a_new_life_does() {
        for anew in [true, false] {
            let mut claims = Claims::default();
            claims.hear(1000);
            let mut believed = claims.close(WINDOW_NS, 0).0;
            if anew {
                claims.begin_anew();
            }
            let mut now = WINDOW_NS;
            for iterations in 0..200 {
                now += WINDOW_NS;
                claims.hear(iterations);
                believed = claims.close(now, believed).0;
            }
            // One claim behind, as ever.
            assert_eq!(believed, if anew { 1198 } else { 1000 });
        }
        // Forged low claims of a node that lives and did begin anew, between its own.
        let mut claims = Claims::default();
        claims.hear(1000);
        let mut believed = claims.close(WINDOW_NS, 0).0;
        claims.begin_anew();
        for window in 2..200 {
            claims.hear(1000);
            claims.hear(3);
            believed = claims.close(window * WINDOW_NS, believed).0;
        }
        assert_eq!(believed, 1000);
    }

    proptest! {
        #[test]
        fn what_is_believed_never_falls_is_bounded_and_follows_a_node(
            steps in proptest::collection::vec((0u64..200, any::<u64>(), any::<bool>(), 1u64..1_000_000_000), 1..60),
        ) {
            let mut claims = Claims::default();
            let (mut now, mut truth, mut believed) = (WINDOW_NS, 0u64, 0);
            for (more, forged, forge, time) in steps {
                now += time;
                truth += more.min(time / ITERATION_NS);
                claims.hear(truth);
                if forge {
                    claims.hear(forged);
                }
                let (next, _) = claims.close(now, believed);
                prop_assert!(next >= believed && next <= truth, "{believed} {next} {truth}");
                believed = next;
            }
            claims.hear(truth);
            believed = claims.close(now + WINDOW_NS, believed).0;
            claims.hear(truth);
            believed = claims.close(now + 2 * WINDOW_NS, believed).0;
            prop_assert_eq!(believed, truth);
        }
    }
}
