//! Who may send next where a rate is kept: positions, answers and restores share it.
//!
//! Counters only. Own frames are positions and restores, half of each where both want to go. Under
//! a limit of rate ([`Room`]) there are as many answers to an own frame as there are other nodes:
//! what an even fleet needs for each position to be answered. Invariants:
//! - Neither kind can keep the other from sending: who is behind goes first.
//! - What one kind leaves unused goes to the other, so that no budget is lost.
//! - Without a limit nothing is ever held back here.

use super::Room;

/// Frames per other node that one kind may be ahead of the other: positions come in bursts.
const SLACK: i64 = 4;

/// The account of both kinds.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// Answers to one position: the number of other nodes.
    answers_per_position: i64,
    /// Answers sent beyond their share; negative: own frames are ahead.
    ahead: i64,
    /// Own frames that are due and that there was no room for.
    waiting: usize,
    /// Whether a restore went last, of restores and positions.
    restored: bool,
}

impl Shares {
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            answers_per_position: i64::from(nodes.max(2) - 1),
            ahead: 0,
            waiting: 0,
            restored: false,
        }
    }

    /// As many others are there now: nodes come.
    pub(super) fn share_with(&mut self, others: u16) {
        self.answers_per_position = i64::from(others.max(1));
    }

    fn most(&self) -> i64 {
        SLACK * self.answers_per_position
    }

    /// Whether an answer may go now, as far as own frames have a say in it. Each one that may not
    /// leaves its room to an own frame.
    pub(super) fn may_answer(&mut self) -> bool {
        if self.waiting == 0 || self.ahead < self.most() {
            return true;
        }
        self.waiting -= 1;
        false
    }

    /// Own frames of the `wanted` that may go now.
    #[inline]
    pub(super) fn own_frames(&mut self, wanted: usize, room: Option<Room>) -> usize {
        let Some(room) = room else {
            self.waiting = 0;
            return wanted;
        };
        let due = match self.ahead / self.answers_per_position {
            _ if self.ahead < 0 => 0,
            frames => wanted.min(frames as usize + 1),
        };
        self.waiting = due.saturating_sub(room.now);
        // What would run over soon is free for all; below that, answers have a claim.
        let high = room.most - (room.most / 4).max(1).min(room.most);
        wanted.min(room.now.saturating_sub(high).max(due.min(room.now)))
    }

    /// How many of `may` own frames are restores, where `positions` want to go too: half of them,
    /// and all that positions do not want.
    pub(super) fn restores(&mut self, may: usize, positions: usize) -> usize {
        if may > 0 {
            self.restored = !self.restored;
        }
        let half = if self.restored {
            may.div_ceil(2)
        } else {
            may / 2
        };
        half.max(may.saturating_sub(positions))
    }

    #[inline]
    pub(super) fn answer_sent(&mut self) {
        self.ahead = (self.ahead + 1).min(self.most());
    }

    #[inline]
    pub(super) fn own_sent(&mut self) {
        self.ahead = (self.ahead - self.answers_per_position).max(-self.most());
    }
}

#[cfg(test)]
mod tests;
