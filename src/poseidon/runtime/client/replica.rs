//! The memory in which a client's weights lie, and what the rule of the steps remembers of them.
//!
//! Invariant: the views that a [`Replica`] gives are of one memory and of one length for its whole
//! life.

use std::sync::atomic::AtomicU32;

use crate::weights::WeightsView;

/// The memory of one client. All arrays have the layout of the plan's tensors.
pub trait Replica: Send + Sync {
    /// The weights; with the rule `mean` the mean gradients.
    fn weights(&self) -> WeightsView<'_>;

    /// How many arrays [`Replica::state`] has.
    fn states(&self) -> usize;

    /// What the rule of the steps remembers, by its place: momentum, or Adam's moments. Only steps
    /// that the client makes itself (schemes `sfb` and `onebit`) use it.
    ///
    /// # Panics
    /// If `which` is not below [`Replica::states`].
    fn state(&self, which: usize) -> WeightsView<'_>;
}

/// Memory of this process, all zero at first.
#[derive(Debug)]
pub struct OwnReplica {
    weights: Vec<AtomicU32>,
    state: Vec<Vec<AtomicU32>>,
}

impl OwnReplica {
    /// Room for `len` weights, and for as many numbers in each of `states` arrays.
    pub fn new(len: usize, states: usize) -> Self {
        let zeros = || (0..len).map(|_| AtomicU32::new(0)).collect();
        Self {
            weights: zeros(),
            state: (0..states).map(|_| zeros()).collect(),
        }
    }
}

impl Replica for OwnReplica {
    fn weights(&self) -> WeightsView<'_> {
        WeightsView::of(&self.weights)
    }

    fn states(&self) -> usize {
        self.state.len()
    }

    fn state(&self, which: usize) -> WeightsView<'_> {
        WeightsView::of(&self.state[which])
    }
}
