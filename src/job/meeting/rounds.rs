//! Rounds of a cluster on the reliable path: its members start together, on all nodes.
//!
//! One member that ends ends all others, and none can rejoin a running cluster. So each node says
//! when nothing runs on it any more, and node 0 begins a round when all have said so.

use std::net::IpAddr;

use super::message::{Round, Word};
use super::{Meeting, State};

impl Meeting {
    /// The address of this node on the network of the job, if another node was reached.
    pub fn own_address(&self) -> Option<IpAddr> {
        self.shared.state().own
    }

    /// Says that nothing of the cluster runs here, and which checkpoints its members have.
    pub fn ready(&self, clocks: &[u64]) {
        let mut state = self.shared.state();
        let rank = self.shared.card.world.rank;
        state.ready.insert(rank, clocks.to_vec());
        // One that is not heard is said again with the next connection.
        if rank != 0 {
            let lines = state.lines.values_mut();
            lines.for_each(|line| line.say(&Word::Ready(clocks.to_vec())));
        }
    }

    /// The round that node 0 has begun since this was asked last.
    pub fn take_round(&self) -> Option<Round> {
        let mut state = self.shared.state();
        let round = state.round.take()?;
        state.ready.clear();
        Some(round)
    }

    /// On node 0: the newest checkpoint that all nodes have, once all are ready; `Err`: those that
    /// are not.
    pub fn all_ready(&self) -> Result<Option<u64>, Vec<u16>> {
        let state = self.shared.state();
        let not = |node: &u16| !state.ready.contains_key(node);
        let lacking: Vec<u16> = (0..self.shared.card.world.size).filter(not).collect();
        if lacking.is_empty() {
            Ok(state.newest_common())
        } else {
            Err(lacking)
        }
    }

    /// On node 0: a node on which nothing of the cluster runs, though a round has begun.
    pub fn idle_node(&self) -> Option<u16> {
        self.shared.state().ready.keys().next().copied()
    }

    /// On node 0: begins a round.
    pub fn begin_round(&self, round: &Round) {
        let mut state = self.shared.state();
        state.ready.clear();
        let lines = state.lines.values_mut();
        lines.for_each(|line| line.say(&Word::Round(round.clone())));
    }

    /// On node 0: the round that runs is that of `node` too.
    pub fn tell_round(&self, node: u16, round: &Round) {
        let mut state = self.shared.state();
        state.ready.remove(&node);
        if let Some(line) = state.lines.get_mut(&node) {
            line.say(&Word::Round(round.clone()));
        }
    }
}

impl State {
    fn newest_common(&self) -> Option<u64> {
        let mut nodes = self.ready.values();
        let first = nodes.next()?;
        let others: Vec<_> = nodes.collect();
        let common = |clock: &&u64| others.iter().all(|clocks| clocks.contains(clock));
        first.iter().filter(common).max().copied()
    }
}
