//! Pairs that are updated together, and how their steps are made.

use std::sync::Arc;

use super::super::arithmetic::{Arithmetic, add, rebuild};
use super::super::message::{Body, Message, MessageKind, Pool};
use super::super::onebit;
use super::super::plan::Plan;
use super::super::rounds::Rounds;
use super::shard::Shard;
use crate::poseidon::cost::Scheme;
use crate::weights::WeightsView;

/// A single pair, or all of a layer under `adam`.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) layer: usize,
    pub(super) scheme: Scheme,
    pub(super) shards: Vec<Shard>,
    pub(super) rounds: Rounds<Message>,
}

impl Unit {
    pub(super) fn new(layer: usize, scheme: Scheme, rounds: Rounds<Message>) -> Self {
        Self {
            layer,
            scheme,
            shards: Vec::new(),
            rounds,
        }
    }

    /// True if updates of this kind are for it.
    pub(super) fn takes(&self, kind: MessageKind) -> bool {
        match self.scheme {
            Scheme::Ps | Scheme::P2p => kind == MessageKind::Gradient,
            Scheme::OneBit => kind == MessageKind::Bits,
            Scheme::Adam => kind == MessageKind::Factors,
            Scheme::Sfb => false,
        }
    }

    /// Makes step `clock` from the updates of some of the workers, in their order. Gives the
    /// messages for all workers.
    pub(super) fn step(
        &mut self,
        plan: &Plan,
        clock: u64,
        updates: Vec<Message>,
        math: &dyn Arithmetic,
        pool: &Pool,
    ) -> Vec<Arc<Message>> {
        let contributions = updates.len();
        let mut updates = updates.into_iter();
        if self.scheme == Scheme::OneBit {
            return self.sum_bits(clock, plan.workers, contributions, updates, pool);
        }
        if self.scheme == Scheme::Adam {
            let layer = &plan.layers[self.layer];
            let mut sum = pool.take(layer.shape.parameters() as usize);
            let updates: Vec<Message> = updates.collect();
            rebuild(layer, updates.iter(), math, &mut sum);
            self.make(clock, contributions, &sum, math);
        } else if let Some(Body::Floats(mut sum)) = updates.next().map(|first| first.body) {
            updates.for_each(|message| add(&mut sum, message.floats()));
            self.make(clock, contributions, &sum, math);
        }
        self.weights()
    }

    /// Makes the step with the sum of the gradients of the whole unit.
    fn make(&mut self, clock: u64, contributions: usize, sum: &[f32], math: &dyn Arithmetic) {
        let first = self.shards.first().map_or(0, |shard| shard.pair.in_layer);
        for shard in &mut self.shards {
            let (pair, from) = (shard.pair, shard.pair.in_layer - first);
            let gradient = &sum[from..from + pair.len];
            let (w, state) = shard.step_to(clock + 1);
            let state: Vec<_> = state.iter().map(|x| WeightsView::of(x)).collect();
            math.step(&pair, clock, contributions, gradient, w, &state);
        }
    }

    /// Adds up what came in bits, and gives the sum in bits: the workers make the step of it, and
    /// divide by the number of all workers.
    fn sum_bits(
        &mut self,
        clock: u64,
        workers: u16,
        contributions: usize,
        updates: impl Iterator<Item = Message>,
        pool: &Pool,
    ) -> Vec<Arc<Message>> {
        let Some(shard) = self.shards.first_mut() else {
            return Vec::new();
        };
        let mut sum = pool.take(shard.pair.len);
        sum.fill(0.0);
        updates.for_each(|message| onebit::add(&shard.pair, message.words(), &mut sum));
        if contributions < usize::from(workers) {
            let share = f32::from(workers) / contributions as f32;
            sum.iter_mut().for_each(|sum| *sum *= share);
        }
        vec![Arc::new(Message {
            kind: MessageKind::Bits,
            subject: shard.pair.id,
            sender: shard.pair.home.map_or(0, |home| home.index),
            clock: clock + 1,
            body: Body::Words(onebit::quantise(&shard.pair, &sum, &mut shard.residual)),
        })]
    }

    /// The weights as they are.
    pub(super) fn weights(&self) -> Vec<Arc<Message>> {
        self.shards.iter().filter_map(Shard::message).collect()
    }
}
