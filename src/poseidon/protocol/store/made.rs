//! What a store gives for the workers: messages, how early each should leave, and checkpoints.

use std::sync::Arc;

use super::super::bandwidth::Priority;
use super::super::message::Message;
use super::super::plan::Plan;
use super::super::step::StepRule;
use super::unit::Unit;
use super::{Checkpoint, Shard};
use crate::weights::WeightsView;

/// What the steps of one unit gave. No other step of it is made while this exists.
#[derive(Debug)]
pub struct Made<'u> {
    plan: &'u Plan,
    unit: &'u Unit,
    /// For all workers.
    pub messages: Vec<Arc<Message>>,
    /// Complete ones. They must be on the disk before a worker sees the step that completes them.
    pub checkpoints: Vec<Checkpoint>,
}

impl<'u> Made<'u> {
    pub(super) fn new(
        plan: &'u Plan,
        unit: &'u Unit,
        messages: Vec<Arc<Message>>,
        checkpoints: Vec<Checkpoint>,
    ) -> Self {
        Self {
            plan,
            unit,
            messages,
            checkpoints,
        }
    }

    /// Priority of a pair's last step: its length over that of the pair's weights. The history of
    /// the solver's momentum is what the step subtracted from the weights. Under `onebit` the
    /// weights are not here, and other rules than SGD do not keep their steps: only the layer
    /// counts then.
    pub fn priority(&self, pair: u32) -> Priority {
        let mut shards = self.unit.shards.iter();
        let shard = shards.find(|shard| shard.pair.id == pair);
        Priority {
            magnitude: shard.map_or(0.0, |shard| self.magnitude(shard)),
            layer: self.unit.layer as u32,
        }
    }

    fn magnitude(&self, shard: &Shard) -> f32 {
        let weights = shard.weights().unwrap_or_default();
        let step = match (&self.plan.step.rule, shard.state.first()) {
            (StepRule::Sgd { .. }, Some(history)) => {
                let view = WeightsView::of(history);
                length((0..history.len()).map(|i| view.load(i)))
            }
            _ => 0.0,
        };
        step / length(weights.iter().copied()).max(f32::MIN_POSITIVE)
    }
}

fn length(values: impl Iterator<Item = f32>) -> f32 {
    values.map(|value| value * value).sum::<f32>().sqrt()
}
