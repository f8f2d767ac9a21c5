//! Which life of a node and of its range frames belong to.
//!
//! A *life* is an incarnation: the random number of a node's memory. The *epoch* of a range grows
//! when frames from before must not be taken any more: its node lost its memory and has it back, or
//! another node began a new life. Numbers of deltas go on through it. So a slave loses nothing by
//! a new epoch, and it may be raised whenever there is doubt.
//!
//! A slave *promises* an epoch of each range: it takes no position of an earlier one. Who promised
//! more than its master knows says so in its hellos, and the master follows. So a promise that was
//! made by mistake, to a frame that came late or is forged, refuses frames for one hello at most.
//!
//! Invariant: a promise never goes back while a chunk of the range is held.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;
use crate::wire::NodeSeen;

/// How far one frame moves a promise: forged ones must not carry it half around the circle of
/// epochs before its master has heard of it.
const STEPS_MAX: u32 = 64;
/// How far one hello moves the epoch of a master: slaves come after it by [`STEPS_MAX`] for each
/// position.
const FOLLOW_MAX: u32 = 1 << 12;
/// Superseded lives of a node that are remembered.
const FORMER: usize = 4;
/// One of them is believed again when the present one was silent for so long, ns.
const BACK_NS: u64 = 1_000_000_000;

/// How far epoch `a` is ahead of `b`, modulo 2^32; 0: it is not.
pub(super) fn ahead(a: u32, b: u32) -> u32 {
    let by = a.wrapping_sub(b);
    if (by as i32) > 0 { by } else { 0 }
}

/// The epoch `by` after `epoch`. 0 stands for none.
fn later(epoch: u32, by: u32) -> u32 {
    epoch.wrapping_add(by).max(1)
}

/// The epoch after `epoch`.
pub(super) fn after(epoch: u32) -> u32 {
    later(epoch, 1)
}

/// The lives of one node that were superseded. Hellos of such a one may still be on the way.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    former: [u64; FORMER],
    /// When a hello of the present one came, ns.
    heard_ns: u64,
}

impl Lives {
    /// Whether a hello of `incarnation` begins another life than `present`.
    fn begins(&mut self, now_ns: u64, present: u64, incarnation: u64) -> bool {
        let back = self.former.contains(&incarnation);
        // A frame that is late, or a second process: unless the present one was forged.
        let doubted = back && now_ns.saturating_sub(self.heard_ns) < BACK_NS;
        if incarnation != present && doubted {
            return false;
        }
        self.heard_ns = now_ns;
        if incarnation == present {
            return false;
        }
        self.former.rotate_right(1);
        self.former[0] = present;
        true
    }
}

impl Common<'_> {
    /// The incarnation that `node` was last heard with; 0: none.
    pub(super) fn life(&self, node: u16) -> u64 {
        self.state.node(node).life.load(Relaxed)
    }

    /// The epoch of `node`'s range before which no position is taken; 0: none yet.
    #[inline]
    pub(super) fn promised(&self, node: u16) -> u32 {
        self.state.node(node).promised.load(Relaxed)
    }

    /// Goes towards `epoch` with the promise for `node`'s range. True: it is that epoch now.
    pub(super) fn promise(&mut self, node: u16, epoch: u32) -> bool {
        let promised = &self.state.node(node).promised;
        let before = promised.load(Relaxed);
        // Who holds nothing has nothing to measure an epoch against.
        let nothing = before == 0 || self.peers[usize::from(node)].joined_chunks == 0;
        let by = ahead(epoch, before);
        if nothing && epoch != 0 {
            promised.store(epoch, Relaxed);
        } else if by > 0 {
            promised.store(later(before, by.min(STEPS_MAX)), Relaxed);
        }
        promised.load(Relaxed) == epoch
    }

    /// Raises the promise for `node`'s range by one, so that its master begins a new epoch.
    pub(super) fn ask_for_new_epoch(&mut self, node: u16) {
        let promised = &self.state.node(node).promised;
        promised.store(after(promised.load(Relaxed)), Relaxed);
        self.tell_soon = true;
    }

    /// Whether a position of `epoch` of `node`'s range may be taken.
    #[inline]
    pub(super) fn epoch_fits(&mut self, node: u16, epoch: u32) -> bool {
        epoch != 0 && (epoch == self.promised(node) || self.begin_epoch(node, epoch))
    }

    #[cold]
    fn begin_epoch(&mut self, node: u16, epoch: u32) -> bool {
        if self.promised(node) == 0 || ahead(epoch, self.promised(node)) > 0 {
            return self.promise(node, epoch);
        }
        // It cannot know: it hears of it in our next hello.
        self.tell_soon = true;
        false
    }

    /// Takes the incarnation of a node's hello. A new one begins a new epoch of the own range: what
    /// its former life sent is refused from then on, so that no number of that life is taken for
    /// one of this.
    pub(super) fn hear_life(&mut self, now_ns: u64, node: u16, incarnation: u64) {
        let known = &self.state.node(node).life;
        let before = known.load(Relaxed);
        let lives = &mut self.peers[usize::from(node)].lives;
        if incarnation == 0 || !lives.begins(now_ns, before, incarnation) {
            return;
        }
        // In this order: who is killed in between does it once more.
        if before != 0 && self.streaming() {
            self.set_epoch(after(self.epoch()));
        }
        self.state.forget_partials_of(node);
        if before != 0 {
            self.peers[usize::from(node)].claims.begin_anew();
        }
        known.store(incarnation, Relaxed);
        self.tell_soon = true;
    }

    /// Takes what the hello of `node`, whose range is in `epoch`, says of this node: whether it
    /// knows this life of ours, and which epoch of our range it promised.
    pub(super) fn hear_of_us(&mut self, node: u16, epoch: u32, of_us: NodeSeen) {
        let own = self.config.incarnation;
        let peer = &mut self.peers[usize::from(node)];
        peer.of_us = Some(of_us);
        // Until it does, it may still count deltas of a former life of ours.
        peer.admits = own == 0 || of_us.life == own as u32;
        if peer.admits && epoch != 0 && epoch != self.promised(node) {
            self.promise(node, epoch);
        }
        let by = ahead(of_us.epoch, self.epoch());
        if self.streaming() && by > 0 {
            self.set_epoch(later(self.epoch(), by.min(FOLLOW_MAX)));
        }
    }

    /// The latest epoch of the own range that any node has told of, this one included.
    pub(super) fn latest_told(&self) -> u32 {
        let latest_of = |a: u32, b: u32| if a == 0 || ahead(b, a) > 0 { b } else { a };
        let told = self.others().filter_map(|node| self.of_us(node));
        let told = told.map(|told| told.epoch).filter(|epoch| *epoch != 0);
        let latest = told.fold(0, latest_of);
        // What this node asked in. Far beyond what others know it came from a forged frame.
        let asked = self.promised(self.config.node);
        if latest == 0 || ahead(asked, latest) <= STEPS_MAX {
            latest_of(latest, asked)
        } else {
            latest
        }
    }

    /// What `node` last said of this node and its range.
    pub(super) fn of_us(&self, node: u16) -> Option<NodeSeen> {
        self.peers[usize::from(node)].of_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_ordered_on_a_circle_without_zero() {
        assert_eq!((ahead(3, 2), ahead(2, 3), ahead(2, 2)), (1, 0, 0));
        assert_eq!(ahead(1, u32::MAX), 2);
        assert_eq!((after(0), after(7), after(u32::MAX)), (1, 8, 1));
    }
}
