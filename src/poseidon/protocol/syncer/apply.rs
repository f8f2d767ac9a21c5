//! What a syncer does with the weights: true steps, as their updates arrive, and own steps ahead of
//! them.
//!
//! Invariant: own steps are out of the weights before a true one is made.

use std::sync::Arc;

use super::super::arithmetic::{Arithmetic, rebuild};
use super::super::message::Message;
use super::super::onebit;
use super::super::plan::Pair;
use super::{HeldPair, Syncer};
use crate::poseidon::cost::Scheme;
use crate::weights::{WeightsView, kernels};

impl Syncer {
    /// Applies to the weights what has arrived, if the layer is open. `w` and each of `state` have
    /// the layout of the buffer.
    pub fn apply_received(
        &mut self,
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
        math: &dyn Arithmetic,
    ) {
        if !self.open {
            return;
        }
        if self.layer.scheme == Scheme::Sfb {
            self.apply_factors(w, state, math);
        }
        for held in &mut self.pairs {
            if held.waiting.is_empty() {
                continue;
            }
            let (w, state) = (part(&held.pair, w), parts(&held.pair, state));
            match held.pair.scheme {
                Scheme::OneBit => {
                    held.apply_bits(w, &state, self.workers, math, &mut self.scratch);
                }
                _ => held.take_weights(w),
            }
        }
        self.make_own(w, state, math);
    }

    /// Makes the steps of which all factors are here.
    fn apply_factors(
        &mut self,
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
        math: &dyn Arithmetic,
    ) {
        while let Some((clock, factors)) = self.rounds.take(self.workers) {
            let factors = factors.iter().map(|(_, message)| message.as_ref());
            let len = self.layer.shape.parameters() as usize;
            self.scratch.resize(len, 0.0);
            rebuild(&self.layer, factors, math, &mut self.scratch);
            for held in &mut self.pairs {
                let pair = held.pair;
                let gradient = &self.scratch[pair.in_layer..pair.in_layer + pair.len];
                let (w, state) = (part(&pair, w), parts(&pair, state));
                held.undo_own(w, &state);
                math.step(&pair, clock, self.workers, gradient, w, &state);
                held.forget_own(clock + 1);
            }
        }
    }

    /// Notes factors that this worker has sent, where it reads its own part of missing steps.
    pub(super) fn note_own(&mut self, message: &Arc<Message>) {
        if self.pairs.iter().any(|held| held.ahead.is_some()) {
            self.own.push_back(message.clone());
        }
    }

    /// Makes this worker's part of the steps that are missing.
    fn make_own(&mut self, w: WeightsView<'_>, state: &[WeightsView<'_>], math: &dyn Arithmetic) {
        while let Some(message) = self.own.pop_front() {
            let len = self.layer.shape.parameters() as usize;
            self.scratch.resize(len, 0.0);
            rebuild(
                &self.layer,
                std::iter::once(&*message),
                math,
                &mut self.scratch,
            );
            for held in &mut self.pairs {
                let (pair, done) = (held.pair, held.applied.max(self.rounds.now()));
                if let Some(ahead) = held.ahead.as_mut().filter(|_| message.clock >= done) {
                    let gradient = &self.scratch[pair.in_layer..pair.in_layer + pair.len];
                    ahead.note(message.clock, gradient.to_vec());
                }
            }
        }
        for held in &mut self.pairs {
            let pair = held.pair;
            if let Some(ahead) = &mut held.ahead {
                let (w, state) = (part(&pair, w), parts(&pair, state));
                ahead.make(&pair, w, &state, math);
            }
        }
    }
}

impl HeldPair {
    /// Takes the newest weights that have come. `w` is the pair's part, as in all that follow.
    fn take_weights(&mut self, w: WeightsView<'_>) {
        let Some(message) = self.waiting.pop_back() else {
            return;
        };
        match &mut self.ahead {
            Some(ahead) => ahead.take_weights(message.clock, message.floats(), w),
            None => kernels::copy_in(w, message.floats()),
        }
        self.applied = message.clock;
    }

    /// Makes the steps whose sums have come in bits.
    fn apply_bits(
        &mut self,
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
        workers: usize,
        math: &dyn Arithmetic,
        scratch: &mut Vec<f32>,
    ) {
        self.undo_own(w, state);
        while let Some(message) = self.waiting.pop_front() {
            scratch.clear();
            scratch.resize(self.pair.len, 0.0);
            onebit::add(&self.pair, message.words(), scratch);
            math.step(&self.pair, self.applied, workers, scratch, w, state);
            self.applied = message.clock;
            self.forget_own(self.applied);
        }
    }

    fn undo_own(&mut self, w: WeightsView<'_>, state: &[WeightsView<'_>]) {
        if let Some(ahead) = &mut self.ahead {
            ahead.undo(w, state);
        }
    }

    fn forget_own(&mut self, steps: u64) {
        if let Some(ahead) = &mut self.ahead {
            ahead.forget(steps);
        }
    }
}

/// A pair's part of the buffer.
fn part<'w>(pair: &Pair, of: WeightsView<'w>) -> WeightsView<'w> {
    of.slice(pair.offset, pair.len)
}

/// A pair's part of each.
fn parts<'w>(pair: &Pair, of: &[WeightsView<'w>]) -> Vec<WeightsView<'w>> {
    of.iter().map(|of| part(pair, *of)).collect()
}
