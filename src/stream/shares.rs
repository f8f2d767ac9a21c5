//! Who may send next where a rate is kept: positions, answers and restores share it.
//!
//! Counters only. Own frames are positions. Under a limit of rate ([`Room`]) there are as many
//! answers to one as there are other nodes: what an even fleet needs for each position to be
//! answered. Who asks for a range to stream it holds up that range meanwhile, so half of all frames
//! are restores as long as any are wanted. Invariants:
//! - No kind can keep another from sending: who is behind goes first.
//! - What one kind leaves unused goes to the others, so that no budget is lost.
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
    /// Other frames beyond as many restores; negative: restores are ahead.
    owed: i64,
    /// Restores that are due and that there was no room for.
    waiting_restores: usize,
    /// Whether a restore went last, of restores and positions, where no rate is kept.
    restored: bool,
}

impl Shares {
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            answers_per_position: i64::from(nodes.max(2) - 1),
            ahead: 0,
            waiting: 0,
            owed: 0,
            waiting_restores: 0,
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

    /// Whether an answer may go now, as far as other kinds have a say in it. Each one that may not
    /// leaves its room to them.
    pub(super) fn may_answer(&mut self) -> bool {
        if self.waiting_restores > 0 && self.owed >= SLACK {
            self.waiting_restores -= 1;
            return false;
        }
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
        wanted.min(free_for_all(room).max(due.min(room.now)))
    }

    /// Restores of the `wanted` that may go now, where `positions` want to go too.
    pub(super) fn restores(
        &mut self,
        wanted: usize,
        positions: usize,
        room: Option<Room>,
    ) -> usize {
        let Some(room) = room else {
            return self.half(wanted, positions);
        };
        let due = match self.owed {
            ..0 => 0,
            frames => wanted.min(frames as usize + 1),
        };
        self.waiting_restores = due.saturating_sub(room.now);
        wanted.min(free_for_all(room).max(due.min(room.now)))
    }

    /// None are wanted any more.
    #[inline]
    pub(super) fn no_restores(&mut self) {
        (self.owed, self.waiting_restores) = (0, 0);
    }

    /// Half of `frames` in turn, and all that positions do not want.
    fn half(&mut self, frames: usize, positions: usize) -> usize {
        self.restored = !self.restored;
        let half = if self.restored {
            frames.div_ceil(2)
        } else {
            frames / 2
        };
        half.max(frames.saturating_sub(positions))
    }

    #[inline]
    pub(super) fn restore_sent(&mut self) {
        self.owed = (self.owed - 1).max(-SLACK);
    }

    #[inline]
    fn other_sent(&mut self) {
        self.owed = (self.owed + 1).min(SLACK);
    }

    #[inline]
    pub(super) fn answer_sent(&mut self) {
        self.other_sent();
        self.ahead = (self.ahead + 1).min(self.most());
    }

    #[inline]
    pub(super) fn own_sent(&mut self) {
        self.other_sent();
        self.ahead = (self.ahead - self.answers_per_position).max(-self.most());
    }
}

/// Frames that the budget would run over with soon: they are free for all. Below that, kinds have
/// their claims.
fn free_for_all(room: Room) -> usize {
    let high = room.most - (room.most / 4).max(1).min(room.most);
    room.now.saturating_sub(high)
}

#[cfg(test)]
mod tests;
