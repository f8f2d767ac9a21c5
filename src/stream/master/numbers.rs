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
    pub(super) fn lead_of(&self, common: &Common<'_>, chunk: u32) -> u8 {
        if common.config.sparse {
            return 0;
        }
        let range = common.ranges.range_of(chunk);
        self.lead.of(common.ranges.of(range).len())
    }

    /// Moves the weights of a chunk on before their position goes, where turns are long.
    #[inline]
    pub(super) fn move_on(&mut self, common: &Common<'_>, chunk: u32, w: WeightsView<'_>) {
        let place = self.own(chunk);
        if self.momentum.moves(place) {
            let steps = common.iterations() as f64 / f64::from(common.config.nodes);
            self.momentum.move_on(place, steps, w, common.writes());
        }
    }

    /// The number of the position that a delta answers: one of its chunk, or the newest of the
    /// chunk that is so far before it.
    #[inline]
    pub(super) fn reached(&self, common: &Common<'_>, header: &Header, lag: u32) -> u64 {
        let chunks = common.ranges.of(header.range);
        match u32::from(header.content) {
            0 => self.position_number(header.chunk, lag),
            lead => {
                let len = chunks.end - chunks.start;
                let place = (header.chunk - chunks.start + len - lead % len) % len;
                self.position_number(chunks.start + place, 0)
            }
        }
    }

    /// The number, of all positions that were sent, of the one of `chunk` that is `lag` versions
    /// old.
    #[inline]
    fn position_number(&self, chunk: u32, lag: u32) -> u64 {
        let len = self.turn.len() as u64;
        let (position, cursor) = (self.own(chunk) as u64, self.own(self.cursor) as u64);
        // Frames sent since that version of this chunk left: chunks go in turn, so the turn tells,
        // and no number has to travel. Those who skip chunks keep the number of the last one.
        let since = (cursor + len - position - 1) % len + u64::from(lag) * len;
        match self.sparse.went_as(position as usize) {
            Some(number) if lag == 0 => number,
            _ => self.window.sent().saturating_sub(since),
        }
    }
}
