//! A solver on the device's own weights, next to the syncer.
//!
//! Reads data as a solver on the processor does, trains on the device, and makes its steps on the
//! syncer's stream, so that none is lost to a position being taken. Its slot and its state file are
//! those of a solver: iterations, the place in the data and the momentum survive. The momentum is
//! on the device; it comes to the file every [`KEEP_EVERY`] and at the end, so a kill takes it back
//! by that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::clock::{Clock, cpu_ns};
use super::super::model::{bound_net, data_kind, train_batch};
use super::super::ready::wait_until_ready;
use super::super::solver::smoothed;
use super::super::solver_error::SolverError;
use super::super::tester::Transforms;
use super::super::turn::Turn;
use super::component::GpuError;
use super::in_step::SyncError;
use crate::device::{Device, DeviceError, Event, HostMemory, Stream, pin};
use crate::solver::data::{self, Batches, Shard, Source};
use crate::solver::{Caution, Cluster, Crew, DeviceNet, Net, Phase, SolverSpec};
use crate::watch::SolverMeter;
use crate::weights::{Expect, Role, SharedWeights, SolverState};

/// How often the momentum comes to the host.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// What a solver on a device is started with.
#[derive(Clone, Debug)]
pub struct DeviceSolverJob {
    /// Model and hyper-parameters.
    pub spec: SolverSpec,
    /// Training pictures.
    pub data: Source,
    /// This solver's number on this buffer, among those of the processor.
    pub index: u32,
    /// This solver's number in the whole cluster, and how many there are.
    pub shard: Shard,
    /// Seed of the order of pictures and of mirroring and cropping.
    pub seed: u64,
}

/// A solver ready to train.
pub(super) struct DeviceSolver<D: Device> {
    job: DeviceSolverJob,
    net: DeviceNet<D>,
    batches: Batches,
    /// The batch that goes up, or is worked on: where in the data it ends, and its images.
    ahead: (u64, u64),
    caution: Caution,
    crew: Crew,
    halvings: u64,
    state: Arc<SolverState>,
    /// That of the state.
    momentum: HostMemory,
    /// When the momentum came last, or set out.
    kept: Option<(Instant, D::Event)>,
}

/// The part of the syncer that a solver works with.
pub(super) struct Segment<'a, D: Device> {
    pub(super) shared: &'a SharedWeights,
    pub(super) weights: &'a D::Memory,
    pub(super) stream: &'a D::Stream,
    /// Cycles of the syncer so far.
    pub(super) cycles: &'a AtomicU64,
}

impl<D: Device> DeviceSolver<D> {
    /// Loads the data and builds the net.
    pub(super) fn new(
        device: &D,
        shared: &SharedWeights,
        job: &DeviceSolverJob,
    ) -> Result<Self, GpuError> {
        let set = job.data.load().map_err(SolverError::from)?;
        let expected = Expect {
            data: Some(data_kind(&job.data, set.train.shape, set.train.classes)),
            ..Expect::default()
        };
        shared.check(&expected).map_err(SyncError::from)?;
        let transforms = Transforms::of(&job.spec, &set.train);
        let (net, manifest) = build(job, &set.train).map_err(SolverError::from)?;
        if manifest.fingerprint() != shared.fingerprint() {
            return Err(GpuError::OtherModel {
                path: shared.path().into(),
                model: job.spec.net.name.clone(),
            });
        }
        let path = SolverState::path_beside(shared.path(), job.index);
        let opened = SolverState::open_or_create(&path, shared.id(), shared.padded());
        let (state, _) = opened.map_err(SyncError::from)?;
        let state = Arc::new(state);
        let momentum = HostMemory::of(state.clone(), |state| state.history());
        pin(device, &momentum);
        let seed = job.seed ^ u64::from(job.shard.index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let batches = Batches::new(
            Arc::new(set.train),
            transforms.train,
            Phase::Train,
            net.batch_size(),
            job.shard,
            seed,
            state.progress().cursor.load(Relaxed),
        );
        let mut on_device = DeviceNet::new(device, &job.spec, &net)?;
        on_device.take_momentum(&momentum)?;
        let mut batches = batches.map_err(SolverError::from)?;
        let ahead = feed(&mut on_device, &mut batches)?;
        Ok(Self {
            net: on_device,
            batches,
            ahead,
            caution: Caution::from_words(state.progress().caution_words(), net.classes()),
            crew: Crew::default(),
            halvings: 0,
            state,
            momentum,
            kept: None,
            job: job.clone(),
        })
    }

    /// Trains until the target that the buffer names is reached or `stop` is set.
    pub(super) fn run(&mut self, at: &Segment<'_, D>, stop: &AtomicBool) -> Result<(), GpuError> {
        let slot = at.shared.claim_slot(Role::Solver, self.job.index);
        let slot = slot.map_err(SyncError::from)?;
        if !wait_until_ready(at.shared, stop) {
            return Ok(());
        }
        // Two cycles begun from now on: the device has the buffer's weights.
        let first = at.cycles.load(Relaxed);
        let globals = at.shared.globals();
        let finished = || {
            let target = globals.target_iterations.load(Relaxed);
            stop.load(Relaxed)
                || globals.stop.load(Relaxed) != 0
                || target > 0 && globals.iterations() >= target
        };
        while at.cycles.load(Relaxed) < first + 2 {
            if finished() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let clock = Clock::start();
        let mut turn = Turn::new(None, None, at.shared);
        let mut mean = None;
        while !finished() {
            let waited_ns = turn.wait(at.shared, &clock, finished);
            SolverMeter::WaitedNs.add(slot.meters(), waited_ns);
            let start = clock.now_ns();
            let (loss, rate, stride, images) = self.step(at)?;
            self.keep_momentum(at)?;
            mean = Some(smoothed(mean, loss));
            let all = globals.local_iterations.fetch_add(1, Relaxed);
            let own = self.state.progress().iteration.fetch_add(1, Relaxed);
            self.crew.note(own, all);
            let meters = slot.meters();
            SolverMeter::Iterations.add(meters, 1);
            SolverMeter::Images.add(meters, images);
            SolverMeter::TrainNs.add(meters, clock.now_ns() - start);
            SolverMeter::LossBits.set(meters, u64::from(mean.unwrap_or(loss).to_bits()));
            SolverMeter::RateBits.set(meters, u64::from(rate.to_bits()));
            SolverMeter::Halvings.set(meters, self.halvings);
            SolverMeter::StrideBits.set(meters, u64::from(stride.to_bits()));
            SolverMeter::CpuNs.set(meters, cpu_ns());
            slot.heartbeat();
        }
        // What is still on its way belongs to the last cycle.
        at.stream.finish()?;
        Ok(self.net.keep_momentum(at.stream, &self.momentum)?.wait()?)
    }

    /// Brings the momentum to the host if it is time.
    fn keep_momentum(&mut self, at: &Segment<'_, D>) -> Result<(), GpuError> {
        let is_due = match &self.kept {
            Some((since, there)) => since.elapsed() >= KEEP_EVERY && there.is_done()?,
            None => true,
        };
        if is_due {
            let there = self.net.keep_momentum(at.stream, &self.momentum)?;
            self.kept = Some((Instant::now(), there));
        }
        Ok(())
    }

    /// One iteration: loss, rate, stride, pictures.
    fn step(&mut self, at: &Segment<'_, D>) -> Result<(f32, f32, f32, u64), GpuError> {
        let globals = at.shared.globals();
        let spec = &self.job.spec;
        let rate = match f32::from_bits(globals.rate_bits.load(Relaxed)) {
            0.0 => spec.rate_at(globals.iterations()),
            set_by_operator => set_by_operator,
        };
        let (mut loss, mut images) = (0.0, 0);
        for part in 0..spec.iter_size {
            self.net.begin(at.weights, part > 0)?;
            // While the device computes, the processor reads what comes next.
            let next = feed(&mut self.net, &mut self.batches)?;
            loss += self.net.end()?;
            let (cursor, done) = std::mem::replace(&mut self.ahead, next);
            images += done;
            self.state.progress().cursor.store(cursor, Relaxed);
        }
        loss /= spec.iter_size as f32;
        if self.caution.note(loss) {
            log::warn!(
                "the loss rises (now {loss:.4}): steps are halved to {:.3} of the solver file's",
                self.caution.factor()
            );
            self.net.halve_momentum(at.stream)?;
            self.halvings += 1;
        }
        self.state.progress().set_caution(self.caution.to_words());
        let rate = rate * self.caution.factor();
        if !loss.is_finite() {
            let iteration = globals.iterations();
            return Err(SolverError::Diverged { loss, iteration }.into());
        }
        let cluster = Cluster::of(at.shared, &self.crew);
        let stride = self.net.step(spec, at.stream, at.weights, rate, &cluster)?;
        Ok((loss, rate, stride, images))
    }
}

/// Puts the next batch on its way: where in the data it ends, and its images.
fn feed<D: Device>(
    net: &mut DeviceNet<D>,
    batches: &mut Batches,
) -> Result<(u64, u64), DeviceError> {
    let batch = batches.next();
    net.feed(&batch.images, &batch.labels)?;
    Ok((batch.cursor, batch.labels.len() as u64))
}

fn build(
    job: &DeviceSolverJob,
    images: &data::Images,
) -> Result<(Net, crate::weights::Manifest), super::super::model::NetError> {
    let batch = train_batch(&job.spec.net)?;
    bound_net(
        &job.spec.net,
        Phase::Train,
        batch,
        images.shape,
        images.classes,
    )
}
