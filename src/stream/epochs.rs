//! Epochs of ranges: who streams a range, and which frames of it are of the past.
//!
//! An epoch is a counter and, in the low byte, the node that streams the range in it. So two nodes
//! that begin a range at once begin different epochs, and all agree which is the later one. A new
//! one is begun when frames from before must not be taken any more: the range has another master,
//! its master lost its memory, or a slave did. Numbers of deltas go on through it. So a slave
//! loses nothing by a new epoch, and it may be begun whenever there is doubt.
//!
//! A node *promises* an epoch of each range: it takes no position of an earlier one. Who promised
//! more than its master knows says so in its hellos, and the master follows, or leaves the range to
//! the node that begins it. So a promise that was made by mistake, to a frame that came late or is
//! forged, refuses frames for one hello at most.
//!
//! Invariant: a promise never goes back while a chunk of the range is held.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use super::common::chunk_flags::SURE;
use crate::wire::NodeSeen;

/// How far one frame moves the counter of a promise: forged ones must not carry it half around the
/// circle before its master has heard of it.
const STEPS_MAX: u32 = 64;
/// How far one hello moves the counter of a master: slaves come after it by [`STEPS_MAX`] for each
/// position.
const FOLLOW_MAX: u32 = 1 << 12;
/// By how much the counter grows where a range is taken over, and not given.
const PARTING: u32 = 8;
/// Bits of the counter.
const COUNTER: u32 = 0xff_ffff;

/// The node that streams a range in `epoch`.
#[inline]
pub(super) fn owner(epoch: u32) -> u16 {
    (epoch & 0xff) as u16
}

/// The counter of `epoch`.
pub(super) fn counter(epoch: u32) -> u32 {
    epoch >> 8
}

/// The epoch of `node` with that counter. 0 stands for no epoch.
pub(super) fn epoch_of(counter: u32, node: u16) -> u32 {
    (counter & COUNTER).max(1) << 8 | u32::from(node)
}

/// The epoch of `node` that comes `by` after `epoch`.
fn later(epoch: u32, by: u32, node: u16) -> u32 {
    epoch_of(counter(epoch).wrapping_add(by), node)
}

/// The next epoch after `epoch`, of `node`.
pub(super) fn after(epoch: u32, node: u16) -> u32 {
    later(epoch, 1, node)
}

/// The epoch of `node` that goes on from a replica without the master of `epoch`. Of two parts of a
/// network the one that took a range over must win: it has the base. So this one comes after those
/// in which the other part gives the range on from node to node.
pub(super) fn after_parting(epoch: u32, node: u16) -> u32 {
    later(epoch, PARTING, node)
}

/// Whether epoch `a` comes after `b`, modulo 2^32; any comes after none.
pub(super) fn is_later(a: u32, b: u32) -> bool {
    a != 0 && (b == 0 || (a.wrapping_sub(b) as i32) > 0)
}

/// By how much the counter of `a`, the later one, is ahead of that of `b`.
fn steps(a: u32, b: u32) -> u32 {
    counter(a).wrapping_sub(counter(b)) & COUNTER
}

/// Whether a node that begins `after` may have known no other epoch since `before`: it took the
/// range over from that one, or got it.
pub(super) fn is_next(before: u32, after: u32) -> bool {
    [1, PARTING].contains(&steps(after, before))
}

/// Whether a node has streamed a range from epoch `before` to epoch `after` without another in
/// between, for certain: a master that goes on begins the next epoch.
#[inline]
pub(super) fn same_reign(before: u32, after: u32) -> bool {
    owner(before) == owner(after) && steps(after, before) <= 1
}

/// The same where it is not known which of the two is the later one.
pub(super) fn are_of_one_reign(a: u32, b: u32) -> bool {
    same_reign(a, b) || same_reign(b, a)
}

impl Common<'_> {
    /// The epoch of a range before which no position is taken; 0: none yet.
    #[inline]
    pub(super) fn promised(&self, range: u16) -> u32 {
        self.state.node(range).promised.load(Relaxed)
    }

    /// The node that streams a range, or is about to, as far as known here.
    pub(super) fn owner(&self, range: u16) -> Option<u16> {
        let promised = self.promised(range);
        (promised != 0).then(|| owner(promised))
    }

    /// The epoch in which this node streams a range; 0: it does not.
    #[inline]
    pub(super) fn streamed(&self, range: u16) -> u32 {
        self.state.node(range).streamed.load(Relaxed)
    }

    /// Whether this node streams a range.
    #[inline]
    pub(super) fn streams(&self, range: u16) -> bool {
        self.streamed(range) != 0
    }

    /// Goes on with a range that this node streams in its epoch `epoch`.
    pub(super) fn go_on_in(&mut self, range: u16, epoch: u32) {
        let state = self.state.node(range);
        // In this order: what is found promised and not streamed is begun anew.
        state.promised.store(epoch, Relaxed);
        state.streamed.store(epoch, Relaxed);
        self.tell_soon = true;
    }

    /// Begins the next epoch of all ranges that this node streams.
    pub(super) fn raise_epochs(&mut self) {
        for range in 0..self.config.places() {
            if self.streams(range) {
                self.go_on_in(range, after(self.streamed(range), self.config.node));
            }
        }
    }

    /// Goes towards `epoch` with the promise for a range. True: it is that epoch now. Another
    /// node's epoch ends that this node streams the range.
    pub(super) fn promise(&mut self, range: u16, epoch: u32) -> bool {
        if epoch == 0 || owner(epoch) >= self.config.places() {
            return false;
        }
        let before = self.promised(range);
        let own = before != 0 && owner(before) == self.config.node;
        // Who holds nothing has nothing to measure an epoch against.
        let nothing = before == 0 || (!own && self.leases[usize::from(range)].held() == 0);
        let to = match () {
            () if nothing => epoch,
            () if !is_later(epoch, before) => before,
            () if steps(epoch, before) <= STEPS_MAX => epoch,
            () => later(before, STEPS_MAX, owner(epoch)),
        };
        self.state.node(range).promised.store(to, Relaxed);
        if owner(to) != owner(before) {
            // What is known of how another began it says nothing of this one.
            let lease = &mut self.leases[usize::from(range)];
            (lease.promised_to, lease.surveyed, lease.is_begun) = (None, false, false);
            for chunk in self.ranges.of(range) {
                self.state.chunk(chunk).flags.fetch_and(!SURE, Relaxed);
                self.forks.forget_parting(chunk);
            }
        }
        if self.streams(range) && to != before {
            self.stop_streaming(range);
        }
        to == epoch
    }

    /// Raises the promise for a range by one, so that its master begins a new epoch.
    pub(super) fn ask_for_new_epoch(&mut self, range: u16) {
        let promised = self.promised(range);
        self.promise(range, after(promised, owner(promised)));
        self.tell_soon = true;
    }

    /// Whether a position of `epoch` of a range may be taken.
    #[inline]
    pub(super) fn epoch_fits(&mut self, range: u16, epoch: u32) -> bool {
        epoch != 0 && (epoch == self.promised(range) || self.begin_epoch(range, epoch))
    }

    #[cold]
    fn begin_epoch(&mut self, range: u16, epoch: u32) -> bool {
        if is_later(epoch, self.promised(range)) {
            return self.promise(range, epoch);
        }
        // It cannot know: it hears of it in our next hello.
        self.tell_soon = true;
        false
    }

    /// Takes what the hello of `node` says of a range.
    pub(super) fn hear_of_range(&mut self, now_ns: u64, node: u16, range: u16, told: NodeSeen) {
        let peer = &mut self.peers[usize::from(node)];
        peer.told[usize::from(range)] = Some(told);
        let (epoch, admits) = (told.epoch, peer.admits);
        let streamed = self.streamed(range);
        if epoch == 0 || owner(epoch) >= self.config.places() {
            return;
        }
        if owner(epoch) == node {
            // From the very node that begins it.
            if admits && epoch != self.promised(range) && self.promise(range, epoch) {
                // It may be about to survey the range in it.
                let life = self.life(node) as u16;
                self.leases[usize::from(range)].promised_to = Some((epoch, life));
            }
        } else if streamed != 0 && is_later(epoch, streamed) {
            self.hear_of_later(now_ns, node, range, epoch);
        }
    }

    /// Takes that `node` knows a later epoch of a range that this node streams: it goes to the node
    /// that begins that one, if that lives. Where two masters do not hear each other, and a third
    /// node hears both, they would go on so for ever. If that node is silent, its newest replica is
    /// with `node`, which takes the range over then. One that streams none tells of an epoch that
    /// was forged, as far as matters here: this node goes on in a still later one.
    #[cold]
    fn hear_of_later(&mut self, now_ns: u64, node: u16, range: u16, epoch: u32) {
        let (own, streamed) = (self.config.node, self.streamed(range));
        let by = steps(epoch, streamed).min(FOLLOW_MAX);
        let another = owner(epoch) != own && by <= STEPS_MAX;
        if another && self.is_heard(now_ns, owner(epoch)) {
            self.promise(range, epoch);
            return;
        }
        let doubted_ns = &mut self.leases[usize::from(range)].doubted_ns;
        if another && *doubted_ns == 0 {
            *doubted_ns = now_ns.max(1);
        }
        // Two parts of a network come together: the other one may be heard in a moment.
        if another && now_ns.saturating_sub(*doubted_ns) < self.config.silence_ns {
            return;
        }
        *doubted_ns = 0;
        if another && self.config.is_master(node) && !self.gives_up(node) {
            self.promise(range, epoch);
            return;
        }
        if another {
            self.keep_as_gone_on(now_ns, range);
        }
        // At least there, in an epoch of our own.
        let same = owner(epoch) == own && steps(epoch, streamed) == by;
        let to = if same { by } else { by + 1 };
        self.go_on_in(range, later(streamed, to, own));
    }

    /// Whether this node hears `node`, or hears one that does.
    fn is_heard(&self, now_ns: u64, node: u16) -> bool {
        let hears = |told: NodeSeen| told.life != 0 && !told.silent && !told.gone;
        let mut living = self.living(now_ns);
        self.is_alive(now_ns, node) || living.any(|other| self.told(other, node).is_some_and(hears))
    }

    /// The latest epoch of a range that any node has told of, this one included.
    pub(super) fn latest_told(&self, range: u16) -> u32 {
        let latest_of = |a: u32, b: u32| if is_later(b, a) { b } else { a };
        let told = self.others().filter_map(|node| self.told(node, range));
        // An epoch of a node that the job has no place for came from a forged frame.
        let told = told.map(|told| told.epoch);
        let told = told.filter(|epoch| owner(*epoch) < self.config.places());
        let latest = told.fold(0, latest_of);
        // What this node asked in. Far beyond what others know it came from a forged frame.
        let asked = self.promised(range);
        if latest == 0 || !is_later(asked, latest) || steps(asked, latest) <= STEPS_MAX {
            latest_of(latest, asked)
        } else {
            latest
        }
    }

    /// What `node` last said of a range.
    pub(super) fn told(&self, node: u16, range: u16) -> Option<NodeSeen> {
        self.peers[usize::from(node)].told[usize::from(range)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_ordered_on_a_circle_without_zero() {
        let last = epoch_of(COUNTER, 7);
        assert!(is_later(epoch_of(1, 0), 0) && !is_later(0, epoch_of(1, 0)));
        assert!(is_later(epoch_of(3, 0), epoch_of(2, 254)));
        assert!(is_later(epoch_of(2, 1), epoch_of(2, 0)));
        assert!(!is_later(epoch_of(2, 1), epoch_of(2, 1)));
        assert!(is_later(after(last, 3), last));
        assert_eq!(
            (after(0, 5), after(last, 3)),
            (epoch_of(1, 5), epoch_of(1, 3))
        );
        assert_eq!((owner(last), counter(last)), (7, COUNTER));
        assert!(same_reign(last, last) && same_reign(epoch_of(2, 7), epoch_of(3, 7)));
        assert!(!same_reign(last, after(last, 8)) && !same_reign(epoch_of(2, 7), epoch_of(4, 7)));
    }

    /// One part of a network takes a range over; in the other its master gives it on in order. The
    /// part that took it over wins, as only that one keeps the weights that it began from.
    #[test]
    fn who_takes_over_wins_against_those_who_give_on() {
        for counter in [1, 2, COUNTER - 3, COUNTER] {
            let first = epoch_of(counter, 0);
            let given = (1..7).fold(first, |epoch, node| after(epoch, node % 3));
            assert!(is_later(after_parting(first, 1), given), "{counter}");
        }
    }
}
