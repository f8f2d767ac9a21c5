//! What a training has come to: tests of what the masters have, and of one node's replica.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::{Training, TrainingError};
use crate::node::{Transforms, bound_net};
use crate::solver::data::{Batches, DataSet, Shard};
use crate::solver::{Evaluation, Phase};
use crate::stream::copy_positions;
use crate::weights::WeightsView;

impl Training<'_> {
    /// Tests what the masters have, each its own range, on `most` pictures.
    ///
    /// # Errors
    /// The model does not fit the pictures.
    pub fn test(&self, data: &DataSet, most: usize) -> Result<Evaluation, TrainingError> {
        let config = &self.fleet.config;
        let len = config.chunks as usize * config.chunk_weights as usize;
        let words: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
        let all = WeightsView::of(&words);
        // A node alone streams nothing, nor does any node a range that is being taken.
        copy_positions(self.fleet.state(0), self.fleet.weights(0), all);
        for node in 0..config.nodes {
            let streamers = self.world.streamer(node).into_iter();
            let own = streamers.flat_map(|one| one.streamed_weights()).flatten();
            own.for_each(|i| all.store(i, self.fleet.weights(node).load(i)));
        }
        self.evaluate(all, data, most)
    }

    /// Tests what `node` has.
    ///
    /// # Errors
    /// The model does not fit the pictures.
    pub fn test_replica(
        &self,
        node: u16,
        data: &DataSet,
        most: usize,
    ) -> Result<Evaluation, TrainingError> {
        self.evaluate(self.fleet.weights(node), data, most)
    }

    fn evaluate(
        &self,
        w: WeightsView<'_>,
        data: &DataSet,
        most: usize,
    ) -> Result<Evaluation, TrainingError> {
        let spec = &self.how.spec;
        let (images, batch) = (Arc::new(data.test.clone()), 100);
        let images_there = images.len();
        let pictures = Transforms::of(spec, &data.train).test;
        let (mut net, _) = bound_net(&spec.net, Phase::Test, batch, images.shape, images.classes)?;
        let phase = Phase::Test;
        let mut batches = Batches::new(images, pictures, phase, batch, Shard::WHOLE, 0, 0)?;
        let mut found = Evaluation::default();
        for _ in 0..most.min(images_there) / batch {
            let batch = batches.next();
            found += net.evaluate(w, &batch.images, &batch.labels);
        }
        Ok(found)
    }
}
