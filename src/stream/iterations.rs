//! How many iterations the job has made, as far as this node knows, and how many steps each node.
//!
//! A node hears of each living node what that made in its present life
//! ([`claims`](super::claims)). What was made in former lives, its own too, others may know alone;
//! and it goes with their memory. Where machines are replaced one after the other, a job would
//! count ever the same iterations. So hellos tell of each node that is heard what it made in former
//! lives, and of a silent one all that it made. Of several such numbers the highest counts. It is
//! of one life, or of a node that makes nothing more, so nothing counts twice.
//!
//! Without a key hellos can be forged. So a number counts if all hellos of a node told at least
//! that much, over a time in which two genuine ones came. Nodes that stream nothing are not
//! believed, and numbers grow no faster than claims do.

use std::sync::atomic::Ordering::Relaxed;

use super::claims::{HELLOS_NS, ITERATION_NS};
use super::common::{Common, Peer};
use crate::wire::{NodeSeen, SEEN_MAX};

/// What the hellos of one node told of another, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    life: u32,
    silent: bool,
    /// The least of it.
    iterations: u32,
    /// When the first of these hellos came, ns; 0: none did.
    since_ns: u64,
}

impl Told {
    /// Takes what a hello tells. Returns what all have told for long enough.
    fn hear(&mut self, now_ns: u64, long_ns: u64, told: NodeSeen) -> Option<u32> {
        if self.since_ns == 0 || (self.life, self.silent) != (told.life, told.silent) {
            *self = Self {
                life: told.life,
                silent: told.silent,
                iterations: told.iterations,
                since_ns: now_ns.max(1),
            };
            return None;
        }
        self.iterations = self.iterations.min(told.iterations);
        if now_ns.saturating_sub(self.since_ns) < long_ns {
            return None;
        }
        self.since_ns = now_ns;
        Some(std::mem::replace(&mut self.iterations, told.iterations))
    }
}

/// Steps that each node has made: iterations, divided by the nodes that learnt then.
///
/// Invariant: what was counted stays so, as many nodes as there are later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    nodes: u16,
    /// Iterations of all and steps of each when there were another number of nodes, last.
    iterations: u64,
    steps: f64,
}

impl Steps {
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            nodes: nodes.max(1),
            iterations: 0,
            steps: 0.0,
        }
    }

    /// Steps of each node when all have made so many iterations.
    fn at(&self, iterations: u64) -> f64 {
        let made = iterations.saturating_sub(self.iterations);
        self.steps + made as f64 / f64::from(self.nodes)
    }

    /// As many nodes share the work from now on, when all have made so many iterations.
    fn share_among(&mut self, nodes: u16, iterations: u64) {
        if self.nodes != nodes {
            self.steps = self.at(iterations);
            self.iterations = iterations;
            self.nodes = nodes.max(1);
        }
    }
}

impl Common<'_> {
    /// Looks who is there, more than the job began with maybe, and who of them learns.
    pub(super) fn count_nodes(&mut self, now_ns: u64) {
        let there = 1 + self.living(now_ns).count() as u16;
        let nodes = there.max(self.config.nodes);
        self.portion.share_among(nodes);
        self.shares.share_with(nodes - 1);
        let learns = |node: &u16| self.peers[usize::from(*node)].iterations > 0;
        let others = self.living(now_ns).filter(learns).count() as u16;
        let learning = match others + u16::from(self.local_iterations() > 0) {
            // All of them are about to begin, as far as is known.
            0 => nodes,
            learning => learning,
        };
        let iterations = self.iterations();
        self.steps.share_among(learning, iterations);
    }

    /// Nodes whose work makes one mean: by this node's part of it, or, if it does none, as many as
    /// are there and learn.
    pub(super) fn nodes_that_learn(&self) -> f64 {
        match self.local_iterations() {
            0 => self.steps.nodes.into(),
            _ => 1.0 / f64::from(self.portion()),
        }
    }

    /// Steps that each node has made: a count that grows with [`iterations`](Self::iterations).
    #[inline]
    pub(super) fn steps(&self) -> f64 {
        self.steps.at(self.iterations())
    }

    pub(super) fn iterations_of_others(&self) -> u64 {
        let sum = |sum: u64, peer: &Peer| sum.saturating_add(peer.iterations);
        self.peers.iter().fold(0, sum)
    }

    /// Iterations of all other nodes' solvers, as far as heard and believed, and of former lives of
    /// this node.
    pub(super) fn remote_iterations(&self) -> u64 {
        self.iterations_of_others()
            .saturating_add(self.own_former_iterations())
    }

    /// A count of all nodes' iterations that grows as they are made: without what was told late.
    #[inline]
    pub(super) fn iterations(&self) -> u64 {
        let others = self.iterations_of_others() - self.leaps;
        self.local_iterations().saturating_add(others)
    }

    /// What a hello tells of the iterations of `node`.
    pub(super) fn iterations_to_tell(&self, now_ns: u64, node: u16) -> u32 {
        let peer = &self.peers[usize::from(node)];
        let iterations = if node == self.config.node {
            self.own_former_iterations()
        } else if self.is_alive(now_ns, node) {
            peer.claims.before()
        } else {
            peer.iterations
        };
        iterations.try_into().unwrap_or(u32::MAX)
    }

    /// Iterations of this node's former lives, as far as others told.
    pub(super) fn own_former_iterations(&self) -> u64 {
        let own = self.state.node(self.config.node);
        own.iterations_before.load(Relaxed)
    }

    /// Takes what a hello of `sender` tells of the iterations of `node`.
    pub(super) fn hear_of_iterations(
        &mut self,
        now_ns: u64,
        sender: u16,
        node: u16,
        told: NodeSeen,
    ) {
        // In larger jobs hellos take turns.
        let turns = self.config.places().div_ceil(SEEN_MAX);
        let long_ns = HELLOS_NS * u64::from(turns);
        let known = &mut self.peers[usize::from(sender)].told_iterations;
        let known = &mut known[usize::from(node)];
        let Some(iterations) = known.hear(now_ns, long_ns, told) else {
            return;
        };
        // Positions of a dead node are not forged as easily as its hellos.
        if iterations > 0 && self.has_lease(sender) {
            let more = long_ns / ITERATION_NS;
            self.believe(node, told, |known| (known + more).min(iterations.into()));
        }
    }

    /// Takes what was told of `node`: iterations of former lives, or all if it is silent.
    /// `believed` is how many there are where so many are known.
    fn believe(&mut self, node: u16, told: NodeSeen, believed: impl Fn(u64) -> u64) {
        if node == self.config.node {
            let ours = told.life == self.config.incarnation as u32;
            if ours && !told.silent {
                let before = believed(self.own_former_iterations());
                let own = self.state.node(node);
                own.iterations_before.fetch_max(before, Relaxed);
            }
            return;
        }
        if told.silent {
            let all = believed(self.peers[usize::from(node)].iterations);
            self.count_more(node, all);
        } else if told.life == self.life(node) as u32 {
            let claims = &mut self.peers[usize::from(node)].claims;
            let all = claims.learn_before(believed(claims.before()));
            let state = &self.state.node(node).iterations_before;
            state.store(claims.before(), Relaxed);
            self.count_more(node, all);
        }
    }

    /// `node` has made that many iterations at least. What is new of that was made before.
    fn count_more(&mut self, node: u16, iterations: u64) {
        let known = &mut self.peers[usize::from(node)].iterations;
        self.leaps += iterations.saturating_sub(*known);
        *known = iterations.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of a job that two nodes began and six joined: no leap where they come or go.
    #[test]
    fn steps_are_of_the_nodes_that_were_there() {
        let mut steps = Steps::new(2);
        assert_eq!(steps.at(100), 50.0);
        steps.share_among(8, 100);
        assert_eq!((steps.at(100), steps.at(180)), (50.0, 60.0));
        steps.share_among(8, 140);
        assert_eq!(steps.at(180), 60.0);
        steps.share_among(4, 180);
        assert_eq!((steps.at(180), steps.at(220)), (60.0, 70.0));
    }

    #[test]
    fn what_all_hellos_tell_for_long_enough_counts() {
        let mut known = Told::default();
        let told = |iterations| NodeSeen {
            life: 7,
            iterations,
            ..NodeSeen::default()
        };
        assert_eq!(known.hear(1, 100, told(50)), None);
        // Forged between two genuine ones.
        assert_eq!(known.hear(2, 100, told(u32::MAX)), None);
        assert_eq!(known.hear(101, 100, told(60)), Some(50));
        assert_eq!(known.hear(150, 100, told(u32::MAX)), None);
        assert_eq!(known.hear(201, 100, told(60)), Some(60));
        // Of another life, or of a node that is silent, another number is meant.
        let another = NodeSeen {
            life: 8,
            ..told(900)
        };
        assert_eq!(known.hear(400, 100, another), None);
        let silent = NodeSeen {
            silent: true,
            ..another
        };
        assert_eq!(known.hear(600, 100, silent), None);
        assert_eq!(known.hear(700, 100, silent), Some(900));
    }
}
