//! Which life of a node frames belong to.
//!
//! A *life* is an incarnation: the random number of a node's memory. A master that hears of a new
//! life of a node begins a new epoch of each range that it streams. What the former life sent is
//! refused from then on, so that no number of that life is taken for one of this.

use std::sync::atomic::Ordering::Relaxed;

use super::common::Common;

/// Superseded lives of a node that are remembered.
const FORMER: usize = 4;
/// One of them is believed again when the present one was silent for so long, ns.
const BACK_NS: u64 = 1_000_000_000;

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

    /// Takes the incarnation of a node's hello.
    pub(super) fn hear_life(&mut self, now_ns: u64, node: u16, incarnation: u64) {
        let known = &self.state.node(node).life;
        let before = known.load(Relaxed);
        let lives = &mut self.peers[usize::from(node)].lives;
        if incarnation == 0 || !lives.begins(now_ns, before, incarnation) {
            return;
        }
        // In this order: who is killed in between does it once more.
        if before != 0 {
            self.raise_epochs();
            self.forks.note_lost(node, self.config.node);
        }
        self.state.forget_partials_of(node);
        let peer = &mut self.peers[usize::from(node)];
        if before != 0 || peer.iterations > 0 {
            peer.claims.begin_anew();
        }
        known.store(incarnation, Relaxed);
        self.tell_soon = true;
    }

    /// Takes which life of this node the hello of `node` knows. Until it knows the present one, it
    /// may still count deltas of a former life.
    pub(super) fn hear_own_life(&mut self, node: u16, life: u32) {
        let own = self.config.incarnation;
        self.peers[usize::from(node)].admits = own == 0 || life == own as u32;
    }
}
