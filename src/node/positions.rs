//! The weights to test or to keep: what the masters have, where replicas are ahead of them.
//!
//! Reads the buffer and the streamer's state file; changes neither.

use std::sync::atomic::AtomicU32;

use crate::stream::copy_positions;
use crate::weights::{SharedWeights, StreamState, WeightsView};

/// Memory for a copy of the positions, and where they are read.
#[derive(Debug, Default)]
pub struct Positions {
    state: Option<StreamState>,
    copy: Vec<AtomicU32>,
}

impl Positions {
    /// The weights as the masters have them now. That is a copy, or the buffer itself where it is
    /// not ahead of them (a node alone, a sum of deltas, no streamer's file).
    pub fn of<'a>(&'a mut self, shared: &'a SharedWeights) -> WeightsView<'a> {
        let globals = shared.globals();
        if globals.portion() == 1.0 {
            return shared.view();
        }
        if self.state.is_none() {
            let path = StreamState::path_beside(shared.path());
            self.state = StreamState::look(&path, shared.id(), shared.padded())
                .inspect_err(|error| log::debug!("the replica is tested as it is: {error}"))
                .ok();
        }
        let Some(state) = &self.state else {
            return shared.view();
        };
        if self.copy.is_empty() {
            let zero = || AtomicU32::new(0);
            self.copy = std::iter::repeat_with(zero).take(shared.padded()).collect();
        }
        let copy = WeightsView::of(&self.copy);
        copy_positions(state, shared.view(), copy);
        copy
    }
}
