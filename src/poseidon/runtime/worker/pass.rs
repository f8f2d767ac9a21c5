//! The threads of a worker that compute.
//!
//! Each thread has a net, a share of the pictures and gradients of its own; `local` adds them to
//! one contribution of the worker.

use std::sync::Arc;
use std::time::Instant;

use super::super::client::Client;
use super::super::client::Replica;
use super::super::error::PoseidonError;
use super::local::{Layer, Local, compact};
use super::on_device::{self, OnDevice};
use super::{Overlap, Worker};
use crate::device::HostMemory;
use crate::node::{SolverError, Transforms, bound_net, train_batch};
use crate::poseidon::{Plan, Recording};
use crate::solver::data::{Batches, Images};
use crate::solver::{DeviceNetError, Net, Phase};

/// One thread that computes.
pub(super) struct Thread {
    pub(super) index: usize,
    work: Work,
    grads: Vec<f32>,
    layers: Vec<Layer>,
    /// For each layer the factors of the batches of this iteration.
    factors: Vec<Vec<Vec<f32>>>,
    iter_size: u64,
    overlap: Overlap,
    slow: f64,
    /// Pictures of its share that were used so far.
    pub(super) cursor: u64,
}

/// The work of a worker: training, or replaying a recording.
pub(super) enum Input {
    Pictures(Arc<Images>),
    Recording(Recording),
}

/// What a thread does in an iteration.
enum Work {
    Train {
        net: Box<Net>,
        batches: Batches,
    },
    Device {
        net: Box<dyn OnDevice>,
        batches: Batches,
        /// Of the batch that was fed: where in the data it ends, and its images.
        ahead: (u64, u64),
    },
    Replay(Recording),
}

/// Result of a pass of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassResult {
    pub(super) loss: f32,
    pub(super) images: u64,
}

/// The threads of `worker` and the sum over them, as they were at the checkpoint that the run goes
/// on from, if there is one.
pub(super) fn threads(
    worker: &Worker<'_>,
    input: Input,
) -> Result<(Vec<Thread>, Local), PoseidonError> {
    let (job, plan, saved) = (worker.job, worker.client.plan(), worker.client.resumed());
    let (spec, count) = (&worker.caffe.spec, worker.caffe.threads);
    let [mut cursors, mut passes] = [vec![0; count], vec![0; count]];
    if let Some(saved) = saved {
        cursors = saved.numbers("cursors", count)?;
        passes = saved.numbers("passes", count)?;
    }
    let layers: Vec<Layer> = plan.layers.iter().map(Layer::of).collect();
    let mut threads = Vec::new();
    for (index, (cursor, passes)) in cursors.into_iter().zip(passes).enumerate() {
        let work = match &input {
            Input::Pictures(images) => {
                let resumed = saved.map(|_| passes);
                train(worker, plan, &layers, images, index, cursor, resumed)?
            }
            Input::Recording(recording) => Work::Replay(recording.clone()),
        };
        threads.push(Thread {
            grads: vec![0.0; worker.model.extent()],
            factors: vec![Vec::new(); layers.len()],
            layers: layers.clone(),
            iter_size: spec.iter_size,
            overlap: job.overlap,
            slow: job.slow,
            index,
            work,
            cursor,
        });
    }
    let local = Local::new(plan, layers, count)?;
    Ok((threads, local))
}

/// The net and the share of the pictures of thread `index`, from `cursor` on. A resumed net has
/// made `resumed` passes, on which its dropout masks depend.
fn train(
    worker: &Worker<'_>,
    plan: &Plan,
    layers: &[Layer],
    images: &Arc<Images>,
    index: usize,
    cursor: u64,
    resumed: Option<u64>,
) -> Result<Work, PoseidonError> {
    let (job, spec) = (worker.job, &worker.caffe.spec);
    let batch = train_batch(&spec.net)?;
    let (mut net, _) = bound_net(&spec.net, Phase::Train, batch, images.shape, images.classes)?;
    let factored = layers
        .iter()
        .enumerate()
        .filter(|(_, l)| l.factored.is_some());
    factored.for_each(|(layer, _)| net.keep_factors(layer));
    // Each thread of the cluster has an order of pictures of its own, as the stream's solvers have.
    let number = u64::from(job.member.index) * worker.caffe.threads as u64 + index as u64;
    let seed = job.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    net.seed_dropout(seed);
    if let Some(passes) = resumed {
        net.resume_passes(passes);
    }
    let shard = worker.shard(plan.workers, index);
    let share = images.len() / shard.of.max(1) as usize;
    if share < batch {
        return Err(PoseidonError::Share {
            who: format!("thread {index} of worker {}", job.member.index),
            images: share,
            batch,
        });
    }
    let transform = Transforms::of(spec, images).train;
    let (images, phase) = (images.clone(), Phase::Train);
    let batches = Batches::new(images, transform, phase, batch, shard, seed, cursor);
    let mut batches = batches.map_err(SolverError::from)?;
    if let Some(&which) = job.devices.get(index) {
        let buffer = HostMemory::of(worker.buffer.clone(), |buffer| buffer.weights());
        let given = on_device::Given {
            spec,
            net: &net,
            layers,
            buffer: &buffer,
        };
        let mut net = given.open(which, index)?;
        let ahead = feed(&mut *net, &mut batches)?;
        return Ok(Work::Device {
            net,
            batches,
            ahead,
        });
    }
    Ok(Work::Train {
        net: Box::new(net),
        batches,
    })
}

/// Puts the next batch on its way: where in the data it ends, and its images.
fn feed(net: &mut dyn OnDevice, batches: &mut Batches) -> Result<(u64, u64), PoseidonError> {
    let batch = batches.next();
    let fed = net.feed(&batch.images, &batch.labels);
    fed.map_err(DeviceNetError::from)?;
    Ok((batch.cursor, batch.labels.len() as u64))
}

impl Thread {
    /// Passes made, for a checkpoint.
    pub(super) fn passes(&self) -> u64 {
        match &self.work {
            Work::Train { net, .. } => net.passes(),
            // No mask of dropout depends on them.
            Work::Device { .. } | Work::Replay(_) => 0,
        }
    }

    /// One pass of this thread: gives each layer to `local` when it is computed, or all at the end.
    pub(super) fn pass(
        &mut self,
        clock: u64,
        client: &Client,
        local: &Local,
    ) -> Result<PassResult, PoseidonError> {
        let start = Instant::now();
        let passed = match &mut self.work {
            Work::Train { .. } => self.train(clock, client, local),
            Work::Device { .. } => self.train_on_device(clock, client, local)?,
            Work::Replay(_) => self.replay(clock, client, local),
        };
        if self.slow > 1.0 {
            std::thread::sleep(start.elapsed().mul_f64(self.slow - 1.0));
        }
        if self.overlap == Overlap::None {
            for layer in (0..self.layers.len()).rev() {
                let factors = std::mem::take(&mut self.factors[layer]);
                local.give(client, clock, self.index, layer, &self.grads, factors);
            }
        }
        Ok(passed)
    }

    fn train(&mut self, clock: u64, client: &Client, local: &Local) -> PassResult {
        let Self {
            index,
            work: Work::Train { net, batches },
            grads,
            layers,
            factors,
            iter_size,
            overlap,
            cursor,
            ..
        } = self
        else {
            return PassResult::default();
        };
        let mut passed = PassResult::default();
        for part in 0..*iter_size {
            let batch = batches.next();
            let last = part + 1 == *iter_size;
            let (images, labels, w) = (&batch.images, &batch.labels, client.weights());
            passed.loss += net.forward_backward_with(w, images, labels, grads, part > 0, |done| {
                let layer = done.layer;
                if let Some(sizes) = layers[layer].factored {
                    factors[layer].push(compact(done.factors, sizes));
                }
                if last && *overlap == Overlap::Wfbp {
                    let factors = std::mem::take(&mut factors[layer]);
                    local.give(client, clock, *index, layer, done.gradients, factors);
                }
            });
            passed.images += labels.len() as u64;
            *cursor = batch.cursor;
        }
        passed.loss /= *iter_size as f32;
        passed
    }

    /// As [`Thread::train`], on the device. While it computes, the processor reads the next batch.
    fn train_on_device(
        &mut self,
        clock: u64,
        client: &Client,
        local: &Local,
    ) -> Result<PassResult, PoseidonError> {
        let Self {
            index,
            work:
                Work::Device {
                    net,
                    batches,
                    ahead,
                },
            grads,
            factors,
            iter_size,
            overlap,
            cursor,
            ..
        } = self
        else {
            return Ok(PassResult::default());
        };
        let mut passed = PassResult::default();
        for part in 0..*iter_size {
            let last = part + 1 == *iter_size;
            net.begin(part > 0, last).map_err(DeviceNetError::from)?;
            let next = feed(&mut **net, batches)?;
            let mut came = |layer: usize, grads: &[f32], own: Option<Vec<f32>>| {
                factors[layer].extend(own);
                if last && *overlap == Overlap::Wfbp {
                    let factors = std::mem::take(&mut factors[layer]);
                    local.give(client, clock, *index, layer, grads, factors);
                }
            };
            passed.loss += net.end(grads, &mut came).map_err(DeviceNetError::from)?;
            let (end, images) = std::mem::replace(ahead, next);
            (passed.images, *cursor) = (passed.images + images, end);
        }
        passed.loss /= *iter_size as f32;
        Ok(passed)
    }

    /// Sleeps for the recorded times. They count on while messages are packed, as on a GPU, which
    /// computes meanwhile.
    fn replay(&mut self, clock: u64, client: &Client, local: &Local) -> PassResult {
        let Self {
            index,
            work: Work::Replay(recording),
            grads,
            layers,
            factors,
            overlap,
            ..
        } = self
        else {
            return PassResult::default();
        };
        let images = recording.images as usize;
        let mut at = Instant::now();
        let mut spend = |time| {
            at += time;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        };
        for layer in &recording.layers {
            spend(layer.forward());
        }
        for (layer, recorded) in recording.layers.iter().enumerate().rev() {
            spend(recorded.backward());
            if let Some([outputs, inputs]) = layers[layer].factored {
                factors[layer] = vec![vec![0.0; images * (outputs + inputs)]];
            }
            if *overlap == Overlap::Wfbp {
                let factors = std::mem::take(&mut factors[layer]);
                local.give(client, clock, *index, layer, grads, factors);
            }
        }
        PassResult {
            loss: 0.0,
            images: images as u64,
        }
    }
}
