//! One KV pair of a store, with all that a checkpoint must hold of it.
//!
//! The weights lie in the message that sends them: a step changes them there, and copies nothing
//! but what still waits for a slow worker.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::super::message::{Body, Message, MessageKind, Pool};
use super::super::plan::{Pair, Plan};
use super::super::step::state_name;
use super::Saved;
use crate::poseidon::cost::Scheme;
use crate::weights::{WeightsView, kernels};

/// A pair that this store holds, with its state.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) pair: Pair,
    /// The weights after the last step; none under `onebit`, where the workers make the steps.
    sent: Option<Arc<Message>>,
    /// What the rule of the steps remembers, an array for each number per weight.
    pub(super) state: Vec<Vec<AtomicU32>>,
    /// Difference of the sums and their bits that were sent back; empty but under `onebit`.
    pub(super) residual: Vec<f32>,
}

impl Shard {
    /// The pair after `start` steps, with the weights of `w`, which has the layout of the buffer.
    pub(super) fn new(
        plan: &Plan,
        pair: Pair,
        start: u64,
        w: WeightsView<'_>,
        pool: &Pool,
    ) -> Self {
        let one_bit = pair.scheme == Scheme::OneBit;
        let held = if one_bit { 0 } else { pair.len };
        let zeros = || (0..held).map(|_| AtomicU32::new(0)).collect();
        let sent = (!one_bit).then(|| {
            let mut weights = pool.take(pair.len);
            kernels::copy_out(w.slice(pair.offset, pair.len), &mut weights);
            Arc::new(Message {
                kind: MessageKind::Weights,
                subject: pair.id,
                sender: pair.home.map_or(0, |home| home.index),
                clock: start,
                body: Body::Floats(weights),
            })
        });
        Self {
            sent,
            state: (0..plan.step.rule.states()).map(|_| zeros()).collect(),
            residual: vec![0.0; pair.len - held],
            pair,
        }
    }

    /// The weights as a message.
    pub(super) fn message(&self) -> Option<Arc<Message>> {
        self.sent.clone()
    }

    /// The weights.
    pub(super) fn weights(&self) -> Option<&[f32]> {
        self.sent.as_ref().map(|sent| sent.floats())
    }

    /// Sets the weights, after as many steps as before.
    pub(super) fn set_weights(&mut self, weights: &[f32]) {
        let sent = self.sent.as_mut().map(Arc::make_mut);
        if let Some(Body::Floats(to)) = sent.map(|sent| &mut sent.body) {
            to.copy_from_slice(weights);
        }
    }

    /// The weights, which are to become those after `clock` steps, and the state. What was sent
    /// and has not left stays as it is.
    pub(super) fn step_to(&mut self, clock: u64) -> (WeightsView<'_>, &[Vec<AtomicU32>]) {
        let sent = self.sent.as_mut().map(Arc::make_mut);
        let weights = sent.and_then(|sent| {
            sent.clock = clock;
            match &mut sent.body {
                Body::Floats(weights) => Some(weights.view()),
                _ => None,
            }
        });
        (weights.unwrap_or(WeightsView::of(&[])), &self.state)
    }

    /// What a checkpoint must hold of it.
    pub(super) fn arrays(&self) -> Vec<Saved> {
        let copy = |words: &[AtomicU32]| {
            let mut values = vec![0.0; words.len()];
            kernels::copy_out(WeightsView::of(words), &mut values);
            values
        };
        let name = |what| format!("pair{}.{what}", self.pair.id);
        let weights = self.weights().unwrap_or_default().to_vec();
        let state = self.state.iter().enumerate();
        let state = state.map(|(which, words)| (name(state_name(which)), copy(words)));
        let residual = (name("residual"), self.residual.clone());
        let weights = std::iter::once((name("weights"), weights));
        weights.chain(state).chain([residual]).collect()
    }
}
