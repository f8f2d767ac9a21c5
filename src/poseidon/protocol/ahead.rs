//! What a worker does while steps are missing: it makes them itself, of its own gradients.
//!
//! Within the window of staleness a worker reads its own updates at once (Ho et al., "More
//! Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013, section
//! 2: read-my-writes). A step is not an addition, though: momentum goes on. So the worker makes the
//! missing steps as the rule would, and takes its own gradient for that of all: it is the best that
//! it knows of theirs. The momentum of all is in it.
//!
//! A pair's true weights come back before its next true step: from the server, or from a copy that
//! is kept where the worker makes the true steps too. So what is made here is in no replica, no
//! checkpoint and no result: it is only read.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

use serde::{Deserialize, Serialize};

use super::arithmetic::Arithmetic;
use super::plan::{Pair, Plan};
use super::step::StepRule;
use crate::poseidon::cost::Scheme;
use crate::weights::{WeightsView, kernels};

/// What a worker reads while steps are missing that staleness hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// Whole steps, and in place of each that is missing one that its own gradient makes.
    #[default]
    Own,
    /// Whole steps alone.
    Delayed,
}

/// The own steps of one pair. See the head of this file.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Own gradients of steps that are not made truly yet, by clock.
    own: VecDeque<(u64, Vec<f32>)>,
    /// How many of them are in the weights.
    made: usize,
    truth: Truth,
}

/// Where the true weights are while own steps are in the buffer.
#[derive(Debug)]
enum Truth {
    /// They come from a server, which makes the steps by momentum SGD. What it remembers is how far
    /// the weights went in the last step.
    Sent {
        /// Weights that came last, and the steps in them.
        last: Option<(u64, Vec<f32>)>,
        /// How far they went, and how far they have gone on since by own steps.
        velocity: Vec<AtomicU32>,
    },
    /// The worker makes the true steps: weights and what the rule remembers, while own steps are
    /// made.
    Kept(Option<(Vec<f32>, Vec<Vec<f32>>)>),
}

impl Ahead {
    /// Of a pair of `len` weights whose steps its server makes.
    pub(super) fn of_server(len: usize) -> Self {
        let velocity = (0..len).map(|_| AtomicU32::new(0)).collect();
        Self::new(Truth::Sent {
            last: None,
            velocity,
        })
    }

    /// Of a pair whose steps the worker makes.
    pub(super) fn of_worker() -> Self {
        Self::new(Truth::Kept(None))
    }

    fn new(truth: Truth) -> Self {
        Self {
            own: VecDeque::new(),
            made: 0,
            truth,
        }
    }

    /// Notes what this worker has sent for step `clock`.
    pub(super) fn note(&mut self, clock: u64, gradient: Vec<f32>) {
        self.own.push_back((clock, gradient));
    }

    /// True if own steps are to be made.
    pub(super) fn is_behind(&self) -> bool {
        self.made < self.own.len()
    }

    /// Makes the own steps that are not made. `w` and each of `state` are those of the pair.
    pub(super) fn make(
        &mut self,
        pair: &Pair,
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
        math: &dyn Arithmetic,
    ) {
        let sent: [WeightsView<'_>; 1];
        let state = match &mut self.truth {
            Truth::Sent { last, velocity } => {
                if let (None, Some((clock, _))) = (&last, self.own.front()) {
                    // The weights that it began with.
                    *last = Some((*clock, copy(w)));
                }
                sent = [WeightsView::of(velocity)];
                &sent[..]
            }
            Truth::Kept(kept) => {
                if self.made < self.own.len() {
                    kept.get_or_insert_with(|| {
                        (copy(w), state.iter().map(|state| copy(*state)).collect())
                    });
                }
                state
            }
        };
        for (clock, gradient) in self.own.iter().skip(self.made) {
            math.step(pair, *clock, 1, gradient, w, state);
        }
        self.made = self.own.len();
    }

    /// Takes the weights of a server, which have `steps` steps.
    pub(super) fn take_weights(&mut self, steps: u64, weights: &[f32], w: WeightsView<'_>) {
        kernels::copy_in(w, weights);
        if let Truth::Sent { last, velocity } = &mut self.truth {
            let velocity = WeightsView::of(velocity);
            match last {
                Some((before, old)) if steps > *before => {
                    let each = 1.0 / (steps - *before) as f32;
                    for (i, (old, new)) in old.iter_mut().zip(weights).enumerate() {
                        velocity.store(i, (*old - new) * each);
                        *old = *new;
                    }
                    *before = steps;
                }
                _ => {
                    (0..weights.len()).for_each(|i| velocity.store(i, 0.0));
                    *last = Some((steps, weights.to_vec()));
                }
            }
        }
        self.forget(steps);
    }

    /// Puts the true weights back, and what the rule remembers, before a true step of the worker.
    pub(super) fn undo(&mut self, w: WeightsView<'_>, state: &[WeightsView<'_>]) {
        if let Truth::Kept(kept) = &mut self.truth
            && let Some((weights, remembered)) = kept.take()
        {
            kernels::copy_in(w, &weights);
            for (state, values) in state.iter().zip(&remembered) {
                kernels::copy_in(*state, values);
            }
        }
        self.made = 0;
    }

    /// Forgets the own part of `steps` steps, which are made truly. None is in the weights now.
    pub(super) fn forget(&mut self, steps: u64) {
        self.own.retain(|(clock, _)| *clock >= steps);
        self.made = 0;
    }
}

fn copy(of: WeightsView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; of.len()];
    kernels::copy_out(of, &mut values);
    values
}

/// What a worker reads of its own of a pair, if the plan says so. A server that steps by another
/// rule than momentum SGD remembers more than its weights show.
pub(super) fn ahead_of(plan: &Plan, pair: &Pair) -> Option<Ahead> {
    if plan.staleness == 0 || plan.reads != Reads::Own {
        return None;
    }
    match (pair.scheme, &plan.step.rule) {
        (Scheme::Sfb | Scheme::OneBit, _) => Some(Ahead::of_worker()),
        (Scheme::Ps | Scheme::Adam | Scheme::P2p, StepRule::Sgd { .. }) => {
            Some(Ahead::of_server(pair.len))
        }
        (Scheme::Ps | Scheme::Adam | Scheme::P2p, _) => None,
    }
}
