//! Which chunk goes next: in turn, or those that moved most first.
//!
//! With [`Config::sparse`](super::Config::sparse) a chunk of the own range waits while it has moved
//! less, since it was sent last, than chunks do on average; what it moves adds up. Invariants: none
//! waits for more than [`PASSES_MOST`] passes, so every chunk is answered again and again; a range
//! at rest goes in turn.

use super::Config;
use crate::weights::WeightsView;
use crate::weights::kernels::{self, STEP_BLOCK};

/// Passes over the range that a chunk may be left out in a row.
const PASSES_MOST: u8 = 7;

/// What moves in the own range. Empty where chunks go in turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Sparse {
    /// Passes that each chunk was left out since it went.
    waited: Vec<u8>,
    /// The number of each chunk's last position, of all that were sent.
    went_as: Vec<u64>,
    /// Mean movement of a chunk when its turn came, smoothed over a pass.
    mean: f64,
    moves: Vec<f32>,
}

impl Sparse {
    pub(super) fn new(config: &Config, own_chunks: usize) -> Self {
        let moves = vec![0.0; (config.chunk_weights as usize).div_ceil(STEP_BLOCK)];
        if config.sparse {
            Self::of(own_chunks, moves)
        } else {
            Self::default()
        }
    }

    fn of(own_chunks: usize, moves: Vec<f32>) -> Self {
        Self {
            waited: vec![0; own_chunks],
            went_as: vec![0; own_chunks],
            mean: 0.0,
            moves,
        }
    }

    /// Chunks that may be left out in one pass: 0 where they go in turn.
    pub(super) fn chunks(&self) -> usize {
        self.waited.len()
    }

    /// The number of a chunk's last position, where chunks do not go in turn.
    pub(super) fn went_as(&self, own: usize) -> Option<u64> {
        self.went_as.get(own).copied()
    }

    /// Notes that a chunk goes as position number `number`.
    #[inline]
    pub(super) fn note_went(&mut self, own: usize, number: u64) {
        if let Some(went) = self.went_as.get_mut(own) {
            *went = number;
        }
    }

    /// Notes what a chunk `w` is as it goes; through `values`, because both views are shared.
    #[inline]
    pub(super) fn note_gone(
        &self,
        w: WeightsView<'_>,
        published: WeightsView<'_>,
        values: &mut Vec<f32>,
    ) {
        if self.waited.is_empty() {
            return;
        }
        values.resize(w.len(), 0.0);
        kernels::copy_out(w, values);
        kernels::copy_in(published, values);
    }

    /// Whether the chunk whose turn it is, now `w`, may wait for the next pass.
    pub(super) fn lets_wait(
        &mut self,
        own: usize,
        w: WeightsView<'_>,
        published: WeightsView<'_>,
    ) -> bool {
        kernels::largest_moves(w, published, &mut self.moves);
        let movement = self.moves.iter().map(|x| f64::from(*x)).sum();
        self.may_wait(own, movement)
    }

    /// Whether a chunk that has moved by `movement` may wait for the next pass.
    fn may_wait(&mut self, own: usize, movement: f64) -> bool {
        self.mean += (movement - self.mean) / self.waited.len() as f64;
        let waits = movement < self.mean && self.waited[own] < PASSES_MOST;
        self.waited[own] = if waits { self.waited[own] + 1 } else { 0 };
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_most_goes_first_and_nothing_waits_for_ever() {
        let mut sparse = Sparse::of(10, Vec::new());
        let mut went = [0; 10];
        let mut since = [0.0; 10];
        for _ in 0..400 {
            for (chunk, since) in since.iter_mut().enumerate() {
                // Chunk 9 moves by 9 a pass, chunk 0 not at all.
                *since += chunk as f64;
                if !sparse.may_wait(chunk, *since) {
                    (went[chunk], *since) = (went[chunk] + 1, 0.0);
                }
            }
        }
        assert!(went.is_sorted(), "{went:?}");
        assert_eq!(went[0], 400 / 8);
        assert!(went[9] >= 4 * went[0], "{went:?}");
    }

    #[test]
    fn a_range_at_rest_goes_in_turn() {
        let mut sparse = Sparse::of(3, Vec::new());
        assert!((0..30).all(|turn| !sparse.may_wait(turn % 3, 0.0)));
    }
}
