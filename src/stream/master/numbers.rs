//! What depends on where in the turn a chunk is: how early its delta is wanted, whether it moves
//! on, and which position an answer is to.
//!
//! Arithmetic over places in the turn: no number has to travel with a frame.

use super::Master;
use crate::stream::common::Common;
use crate::weights::WeightsView;
use crate::wire::Header;

impl Master {
    /// How far before its turn the delta of a chunk is wanted. Who skips chunks has no turn to go
    /// by.
    #[inline]
    pub(super) fn lead(&self, common: &Common<'_>) -> u8 {
        if common.config.sparse {
            return 0;
        }
        self.lead.of(self.turn.len())
    }

    /// Moves the weights of a chunk on before their position goes, where turns are long.
    #[inline]
    pub(super) fn move_on(&mut self, common: &Common<'_>, chunk: u32, w: WeightsView<'_>) {
        let place = self.own(chunk);
        if self.momentum.moves(place) {
            self.momentum
                .move_on(place, common.steps(), w, common.writes());
        }
    }

    /// The number of the position that a delta answers: one of its chunk, or the newest of the
    /// chunk that is so far before it.
    #[inline]
    pub(super) fn reached(&self, header: &Header, lag: u32) -> u64 {
        let place = self.own(header.chunk);
        match usize::from(header.content) {
            0 => self.position_number(place, lag),
            lead => {
                let len = self.turn.len();
                self.position_number((place + len - lead % len) % len, 0)
            }
        }
    }

    /// The number, of all positions that were sent, of the one of the chunk at `place` in the turn
    /// that is `lag` versions old.
    #[inline]
    fn position_number(&self, place: usize, lag: u32) -> u64 {
        let len = self.turn.len() as u64;
        let (position, cursor) = (place as u64, self.own(self.cursor) as u64);
        // Frames sent since that version of this chunk left: chunks go in turn, so the turn tells,
        // and no number has to travel. Those who skip chunks keep the number of the last one.
        let since = (cursor + len - position - 1) % len + u64::from(lag) * len;
        match self.sparse.went_as(place) {
            Some(number) if lag == 0 => number,
            _ => self.window.sent().saturating_sub(since),
        }
    }
}
