//! Tests of weights on pictures: the accuracy on the way and at the end.
//!
//! Reads the weights as they are at that moment, racing with their writers; changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::model::{bound_net, transform};
use super::solver_error::SolverError;
use crate::solver::data::{Batches, Images, Shard, Transform};
use crate::solver::{Evaluation, Net, Phase, SolverSpec};
use crate::weights::WeightsView;

/// Pictures of a test on the way, unless asked otherwise.
pub const TEST_IMAGES: usize = 2000;

/// Pictures of a test that has to be short.
const LEAST_IMAGES: usize = 1000;

/// What happens to pictures on their way into the net.
pub struct Transforms {
    /// Of training pictures.
    pub train: Transform,
    /// Of test pictures.
    pub test: Transform,
}

impl Transforms {
    /// As the model's data layers say, with the mean image of `train`.
    pub fn of(spec: &SolverSpec, train: &Images) -> Self {
        Self {
            train: transform(&spec.net, Phase::Train, train),
            test: transform(&spec.net, Phase::Test, train),
        }
    }
}

/// A test net with its pictures.
pub struct Tester {
    net: Net,
    transform: Transform,
    images: Arc<Images>,
    most: usize,
}

/// What a test found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestResult {
    /// Mean loss.
    pub loss: f32,
    /// Share of right answers, 0 to 1.
    pub accuracy: f32,
    /// Pictures tested.
    pub images: usize,
}

impl Tester {
    /// A tester over the first `most` of `images` (0: all).
    pub fn new(
        spec: &SolverSpec,
        transform: Transform,
        images: Images,
        most: usize,
    ) -> Result<Self, SolverError> {
        let most = if most == 0 {
            images.len()
        } else {
            most.min(images.len())
        };
        // The batch only groups the pictures; a divisor of their number leaves none out.
        let batch = (1..=100)
            .rev()
            .find(|batch| most.is_multiple_of(*batch))
            .unwrap_or(1);
        let (net, _) = bound_net(&spec.net, Phase::Test, batch, images.shape, images.classes)?;
        Ok(Self {
            net,
            transform,
            images: Arc::new(images),
            most,
        })
    }

    /// Tests the weights as they are now; `None` if `stop` was set meanwhile.
    pub fn test(
        &mut self,
        w: WeightsView<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<TestResult>, SolverError> {
        let found = self.test_while(w, |_| !stop.load(Relaxed))?;
        // What was asked to stop after the last batch has been stopped too late to matter.
        Ok((found.images == self.images()).then_some(found))
    }

    /// Tests the weights on as many pictures as `time` allows, a thousand at least; without it on
    /// all.
    pub fn test_within(
        &mut self,
        w: WeightsView<'_>,
        time: Option<Duration>,
    ) -> Result<TestResult, SolverError> {
        let end = time.map(|time| Instant::now() + time);
        self.test_while(w, |done| {
            done < LEAST_IMAGES || end.is_none_or(|end| Instant::now() < end)
        })
    }

    /// Pictures of a whole test.
    fn images(&self) -> usize {
        let batch = self.net.batch_size();
        self.most / batch * batch
    }

    /// Tests batch by batch as long as `go_on` of the pictures done so far.
    fn test_while(
        &mut self,
        w: WeightsView<'_>,
        go_on: impl Fn(usize) -> bool,
    ) -> Result<TestResult, SolverError> {
        let batch = self.net.batch_size();
        let (images, transform) = (self.images.clone(), self.transform.clone());
        let mut batches = Batches::new(images, transform, Phase::Test, batch, Shard::WHOLE, 0, 0)?;
        let mut found = Evaluation::default();
        for _ in 0..self.most / batch {
            if !go_on(found.count) {
                break;
            }
            let batch = batches.next();
            found += self.net.evaluate(w, &batch.images, &batch.labels);
        }
        Ok(TestResult {
            loss: found.loss() as f32,
            accuracy: found.accuracy() as f32,
            images: found.count,
        })
    }
}
