//! Which positions the slaves have answered, and how many of each round.
//!
//! Counters only. A round of a slave is what it was sent since the last one ended. Invariant: no
//! round holds a time in which its slave was silent, as it joined or was paused. What it did not
//! answer then was not lost on the way.

/// What one slave answered.
#[derive(Clone, Copy, Debug, Default)]
struct OfSlave {
    /// Number of our positions that it is known to have been sent.
    reached: u64,
    /// Answers that came.
    count: u64,
    /// Both when its round began: with its first answer, where it gave none in the round before.
    began: Option<(u64, u64)>,
}

/// What all slaves answered.
#[derive(Clone, Debug)]
pub(super) struct Answers(Vec<OfSlave>);

/// A round of one slave so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) sent: u64,
    pub(super) answers: u64,
}

impl Answers {
    pub(super) fn new(nodes: u16) -> Self {
        Self(vec![OfSlave::default(); usize::from(nodes)])
    }

    /// Counts the answer of `node` to position number `reached`; true: it is further on by it. Its
    /// round begins no earlier than at position number `given_up`.
    pub(super) fn count(&mut self, node: u16, reached: u64, given_up: u64) -> bool {
        let slave = &mut self.0[usize::from(node)];
        slave.count += 1;
        if reached <= slave.reached {
            return false;
        }
        slave.reached = reached;
        let from = (reached.max(given_up), slave.count);
        slave.began.get_or_insert(from);
        true
    }

    pub(super) fn round_of(&self, node: u16) -> Round {
        let slave = &self.0[usize::from(node)];
        let (reached, count) = slave.began.unwrap_or((slave.reached, slave.count));
        Round {
            sent: slave.reached.saturating_sub(reached),
            answers: slave.count - count,
        }
    }

    pub(super) fn begin_round(&mut self, given_up: u64) {
        for slave in &mut self.0 {
            let answered = slave.began.is_some_and(|(_, count)| slave.count > count);
            let from = (slave.reached.max(given_up), slave.count);
            slave.began = answered.then_some(from);
        }
    }

    /// Number of the furthest position that any slave is known to have been sent.
    pub(super) fn reached(&self) -> u64 {
        let all = self.0.iter().map(|slave| slave.reached);
        all.max().unwrap_or(0)
    }

    pub(super) fn is_furthest(&self, node: u16) -> bool {
        self.0[usize::from(node)].reached == self.reached()
    }
}
