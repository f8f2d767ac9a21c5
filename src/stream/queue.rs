//! How long frames lie in the queues of the network: round trips, less the time in which an end did
//! not look.
//!
//! A round trip of a position and its delta holds three kinds of time: the way, queues on the way,
//! and the time until a busy node looks at what came. Only the second says that the link is full.
//! Each node knows the third: it is at most the time since it last looked. The slave says it in its
//! delta (`held`), the master knows its own; without both, the least of many round trips is the way
//! and the queue. The way alone is the least of the last intervals. As in LEDBAT (RFC 6817), but
//! for round trips: no clock of another node is read.
//!
//! Invariant: `held` is never less than what it stands for, so a queue may be missed and never made
//! up.

use crate::wire::HELD_UNIT_NS;

/// Interval over which the shortest way is remembered; the one before it counts too, ns.
const INTERVAL_NS: u64 = 10_000_000_000;

/// When this node looked at what came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    now_ns: u64,
    /// End of the last turn.
    before_ns: u64,
}

impl Looks {
    /// A frame is looked at.
    #[inline(always)]
    pub(super) fn note_frame(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// All that had come has been looked at.
    pub(super) fn note_turn(&mut self, now_ns: u64) {
        (self.now_ns, self.before_ns) = (now_ns, now_ns);
    }

    /// Time that the present frame may have lain unread, ns.
    #[inline(always)]
    fn held_ns(self) -> u64 {
        self.now_ns.saturating_sub(self.before_ns)
    }

    /// The same as frames say it.
    #[inline(always)]
    pub(super) fn held_units(self) -> u8 {
        self.held_ns().div_ceil(HELD_UNIT_NS).min(255) as u8
    }

    /// What of a round trip was spent on the network; `None`: the slave did not look for too long
    /// to say.
    pub(super) fn on_network_ns(self, trip_ns: u64, held: u8) -> Option<u64> {
        let slave_ns = u64::from(held) * HELD_UNIT_NS;
        (held < u8::MAX).then(|| trip_ns.saturating_sub(self.held_ns() + slave_ns))
    }
}

/// The delay of the network, and the part of it that is queues.
#[derive(Clone, Debug)]
pub(super) struct Delay {
    /// The least of this round, ns.
    round_ns: Option<u64>,
    /// The least of the interval before and of this one, ns.
    least_ns: [u64; 2],
    began_ns: u64,
    /// The longest queue of a round in this interval, ns.
    longest_ns: u64,
}

impl Delay {
    pub(super) fn new() -> Self {
        Self {
            round_ns: None,
            least_ns: [u64::MAX; 2],
            began_ns: 0,
            longest_ns: 0,
        }
    }

    /// Notes one round trip's time on the network.
    pub(super) fn note(&mut self, on_network_ns: u64) {
        let round_ns = self.round_ns.unwrap_or(u64::MAX);
        self.round_ns = Some(round_ns.min(on_network_ns));
        self.least_ns[1] = self.least_ns[1].min(on_network_ns);
    }

    /// Ends a round: how long its frames lay in queues at least, ns; `None`: nothing was measured.
    pub(super) fn end_round(&mut self) -> Option<u64> {
        let [before_ns, now_ns] = self.least_ns;
        let queued_ns = self.round_ns.take()?.saturating_sub(before_ns.min(now_ns));
        self.longest_ns = self.longest_ns.max(queued_ns);
        Some(queued_ns)
    }

    /// The way without queues, ns, as far as it was seen; what of it is too short to measure is 0.
    pub(super) fn way_ns(&self) -> u64 {
        let [before_ns, now_ns] = self.least_ns;
        match before_ns.min(now_ns) {
            u64::MAX => 0,
            way_ns => way_ns,
        }
    }

    /// Begins a new interval when it is time to. Gives the longest queue of the old one then: while
    /// one stands, it is not seen how long the way is without it.
    pub(super) fn next_interval(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.began_ns) < INTERVAL_NS {
            return None;
        }
        self.began_ns = now_ns;
        self.least_ns = [self.least_ns[1], u64::MAX];
        Some(std::mem::take(&mut self.longest_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_node_that_does_not_look_makes_no_queue() {
        let mut looks = Looks::default();
        looks.note_turn(100 * MS);
        looks.note_frame(120 * MS);
        let held = looks.held_units();
        assert!(u64::from(held) * HELD_UNIT_NS >= 20 * MS);
        let network_ns = looks.on_network_ns(41 * MS, held).unwrap();
        assert!(
            network_ns <= MS && network_ns > MS - HELD_UNIT_NS,
            "{network_ns}"
        );
        assert_eq!(looks.on_network_ns(30 * MS, held), Some(0));
        looks.note_frame(200 * MS);
        assert_eq!(looks.held_units(), 255);
        assert_eq!(looks.on_network_ns(300 * MS, 255), None);
    }

    #[test]
    fn a_queue_is_what_is_longer_than_the_way() {
        let mut delay = Delay::new();
        assert_eq!(delay.end_round(), None);
        delay.note(3 * MS);
        delay.note(5 * MS);
        assert_eq!(delay.end_round(), Some(0));
        delay.note(9 * MS);
        delay.note(8 * MS);
        assert_eq!(delay.end_round(), Some(5 * MS));
        assert_eq!(delay.next_interval(INTERVAL_NS), Some(5 * MS));
        // A longer way is believed once the short one is two intervals old.
        delay.note(8 * MS);
        assert_eq!(delay.end_round(), Some(5 * MS));
        assert_eq!(delay.next_interval(INTERVAL_NS), None);
        assert_eq!(delay.next_interval(2 * INTERVAL_NS), Some(5 * MS));
        delay.note(8 * MS);
        assert_eq!(delay.end_round(), Some(0));
    }
}
