//! Who lives: a node is silent once nothing came of it for longer than its own rhythm explains.
//!
//! A node that streams is heard every few milliseconds, one at rest twice a second, one on a loaded
//! machine in bursts. So the measure is the longest gap of late, and nothing that a user guesses.
//! Time in which this node itself stood still is no silence of others.

use super::common::Common;
use crate::wire::Stay;

/// Gaps are remembered for one to two of these, ns.
const WINDOW_NS: u64 = 4_000_000_000;
/// A node is silent after so many of its longest gaps.
const GAPS: u64 = 3;
/// A gap of so many times the shortest patience is a pause, and no rhythm.
const PAUSE: u64 = 4;

/// The rhythm in which a node is heard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    /// The longest gap of this window and of the one before, ns.
    longest_ns: [u64; 2],
    began_ns: u64,
}

impl Rhythm {
    /// Notes that the node is heard, `gap_ns` after it was heard last. `shortest_ns`: after which
    /// no node is silent.
    #[inline]
    pub(super) fn note(&mut self, now_ns: u64, gap_ns: u64, shortest_ns: u64) {
        if gap_ns > self.longest_ns[0] && gap_ns < PAUSE * shortest_ns {
            self.longest_ns[0] = gap_ns;
        }
        if now_ns.saturating_sub(self.began_ns) > WINDOW_NS {
            self.began_ns = now_ns;
            self.longest_ns = [0, self.longest_ns[0]];
        }
    }

    /// How long it may be silent, ns.
    fn patience_ns(&self, shortest_ns: u64) -> u64 {
        let longest_ns = self.longest_ns[0].max(self.longest_ns[1]);
        shortest_ns.max(GAPS * longest_ns)
    }
}

/// When this node itself was awake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Awake {
    turn_ns: u64,
    since_ns: u64,
}

impl Awake {
    /// Notes a turn of this node.
    #[inline]
    pub(super) fn note(&mut self, now_ns: u64, shortest_ns: u64) {
        if now_ns.saturating_sub(self.turn_ns) > shortest_ns / 4 {
            self.since_ns = now_ns;
        }
        self.turn_ns = now_ns;
    }
}

impl Common<'_> {
    /// Notes that this node is awake.
    #[inline]
    pub(super) fn note_turn(&mut self, now_ns: u64) {
        self.awake.note(now_ns, self.config.silence_ns);
    }

    /// The later of a time and when this node began to be awake, ns.
    pub(super) fn awake_since(&self, ns: u64) -> u64 {
        ns.max(self.awake.since_ns)
    }

    /// Whether `node` was heard lately. This node lives.
    pub(super) fn is_alive(&self, now_ns: u64, node: u16) -> bool {
        let peer = &self.peers[usize::from(node)];
        let since_ns = peer.heard_ns.max(self.awake.since_ns);
        let patience_ns = peer.rhythm.patience_ns(self.config.silence_ns);
        node == self.config.node
            || peer.heard_ns != 0
                && peer.stay != Stay::Gone
                && now_ns.saturating_sub(since_ns) < patience_ns
    }

    /// The nodes that live, without this one.
    pub(super) fn living(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        self.others()
            .filter(move |node| self.is_alive(now_ns, *node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn patience_follows_the_longest_gap_and_forgets_it() {
        let mut rhythm = Rhythm::default();
        assert_eq!(rhythm.patience_ns(500 * MS), 500 * MS);
        for ms in 1..100 {
            rhythm.note(ms * 10 * MS, 10 * MS, 500 * MS);
        }
        assert_eq!(rhythm.patience_ns(500 * MS), 500 * MS);
        rhythm.note(1_300 * MS, 300 * MS, 500 * MS);
        assert_eq!(rhythm.patience_ns(500 * MS), 900 * MS);
        // A pause is no rhythm.
        rhythm.note(6_300 * MS, 5_000 * MS, 500 * MS);
        assert_eq!(rhythm.patience_ns(500 * MS), 900 * MS);
        for ms in 640..2_000 {
            rhythm.note(ms * 10 * MS, 10 * MS, 500 * MS);
        }
        assert_eq!(rhythm.patience_ns(500 * MS), 500 * MS);
    }

    #[test]
    fn who_stood_still_begins_to_listen_anew() {
        let mut awake = Awake::default();
        for ms in [1, 2, 3, 5_000, 5_001] {
            awake.note(ms * MS, 500 * MS);
        }
        assert_eq!(awake.since_ns, 5_000 * MS);
    }
}
