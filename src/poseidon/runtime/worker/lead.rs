//! The loop over iterations: waits for steps, tests, writes checkpoints, and starts the passes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use super::super::checkpoint::Loaded;
use super::super::error::PoseidonError;
use super::super::member::{identity, save};
use super::hub::Hub;
use super::local::Local;
use super::pass::{PassResult, Thread};
use super::{Meters, Worker};
use crate::node::{Clock, SolverError, Tester, cpu_ns};
use crate::poseidon::{Checkpoint, ClusterInfo};
use crate::watch::curve::{CurveRow, CurveWriter};
use crate::watch::{SolverMeter, SyncMeter};
use crate::weights::kernels;

/// Share of the newest loss in the smoothed one.
const LOSS_SMOOTHING: f32 = 0.05;

/// A computing thread other than the leading one: it receives a clock, and answers with the result
/// of its pass.
struct Helper {
    go: Sender<u64>,
    passed: Receiver<(PassResult, [u64; 2])>,
    /// Its place in the data and its passes.
    at: [u64; 2],
}

impl Helper {
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut thread: Thread,
        local: &'scope Local,
        hub: &'scope Hub<'scope>,
    ) -> Self {
        let (go, clocks) = channel::<u64>();
        let (answer, passed) = channel();
        let at = [thread.cursor, thread.passes()];
        scope.spawn(move || {
            let watch = local.watch(thread.index);
            for clock in clocks {
                let passed = thread.pass(clock, hub, local);
                let at = [thread.cursor, thread.passes()];
                if answer.send((passed, at)).is_err() {
                    break;
                }
            }
            if let Some(watch) = watch {
                watch.done();
            }
        });
        Self { go, passed, at }
    }
}

/// The leading thread of a worker.
pub(super) struct Lead<'l> {
    worker: &'l Worker<'l>,
    hub: &'l Hub<'l>,
    cluster: &'l ClusterInfo,
    meters: &'l Meters,
    heartbeat: &'l dyn Fn(),
    clock: Clock,
    /// Time that the run had taken at the checkpoint that it resumes from, ns.
    before_ns: u64,
    loss: Option<f32>,
    identity: BTreeMap<String, String>,
}

impl<'l> Lead<'l> {
    pub(super) fn new(
        worker: &'l Worker<'l>,
        hub: &'l Hub<'l>,
        cluster: &'l ClusterInfo,
        meters: &'l Meters,
        heartbeat: &'l dyn Fn(),
        saved: Option<&Loaded>,
    ) -> Result<Self, PoseidonError> {
        let mut lead = Self {
            worker,
            hub,
            cluster,
            meters,
            heartbeat,
            clock: Clock::start(),
            before_ns: 0,
            loss: None,
            identity: identity(cluster, worker.model),
        };
        if let Some(saved) = saved {
            lead.before_ns = saved.numbers("elapsed_ns", 1)?[0];
            let bits = saved.numbers("loss_bits", 1)?[0];
            lead.loss = Some(f32::from_bits(bits as u32)).filter(|loss| loss.is_finite());
        }
        Ok(lead)
    }

    /// Trains until the last iteration, the target accuracy, or the shutdown.
    pub(super) fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        mut threads: Vec<Thread>,
        local: &'scope Local,
        hub: &'scope Hub<'scope>,
        mut tester: Option<Tester>,
    ) -> Result<(), PoseidonError> {
        let mut own = threads.remove(0);
        let mut helpers: Vec<Helper> = threads
            .into_iter()
            .map(|thread| Helper::start(scope, thread, local, hub))
            .collect();
        let job = self.worker.job;
        let mut curve = match &job.curve {
            Some(path) if tester.is_some() => {
                Some(CurveWriter::append(path).map_err(SolverError::from)?)
            }
            _ => None,
        };
        let plan = &self.cluster.plan;
        let mut t = self.cluster.start;
        while t < plan.clocks.min(self.hub.end_at()) {
            let due = plan.checkpoint_at(t) && t > self.cluster.start;
            // A checkpoint holds exactly `t` steps, so it needs them all; else staleness may hide
            // some.
            let needed = match due {
                true => t,
                false => t.saturating_sub(plan.staleness.into()),
            };
            let waiting = self.clock.now_ns();
            if !self.hub.wait_for(needed) {
                break;
            }
            SyncMeter::WaitNs.add(self.meters, self.clock.now_ns() - waiting);
            if self.hub.drops_late() {
                // A worker that was left behind continues where the others are: updates for the
                // steps in between would be dropped.
                t = t.max(self.hub.steps());
            }
            // The end may have been announced while this worker waited.
            if t >= self.hub.end_at() {
                break;
            }
            let missing = t.saturating_sub(self.hub.steps());
            SyncMeter::StepsMissing.add(self.meters, missing);
            SyncMeter::StepsMissingMax.raise(self.meters, missing);
            if due {
                self.save(t, &own, &helpers)?;
            }
            if let Some(tester) = &mut tester
                && t.is_multiple_of(job.test_every)
                && (t == 0 || t > self.cluster.start)
            {
                let reached = self.test(t, tester, curve.as_mut())?;
                if reached && self.hub.end_at() == u64::MAX {
                    self.end_early(t);
                }
                if t >= self.hub.end_at() {
                    break;
                }
            }
            self.step(t, &mut own, &mut helpers, local)?;
            t += 1;
            (self.heartbeat)();
        }
        let last = plan.clocks.min(self.hub.end_at());
        let whole =
            self.hub.drops_late() && self.hub.end_at() != u64::MAX || self.hub.wait_for(last);
        if !whole || self.hub.shutdown.has_begun() {
            return Ok(());
        }
        // The last one is there too: the run may be gone on with for more iterations.
        if t > self.cluster.start && plan.checkpoint_at(t) {
            self.save(t, &own, &helpers)?;
        }
        if let Some(tester) = &mut tester {
            self.test(t, tester, curve.as_mut())?;
        }
        Ok(())
    }

    /// Computes and sends one iteration.
    fn step(
        &mut self,
        t: u64,
        own: &mut Thread,
        helpers: &mut [Helper],
        local: &Local,
    ) -> Result<(), PoseidonError> {
        self.hub.begin();
        let start = self.clock.now_ns();
        for helper in &*helpers {
            helper.go.send(t).map_err(|_| PoseidonError::Panicked)?;
        }
        let mut sum = own.pass(t, self.hub, local);
        for helper in &mut *helpers {
            let (passed, at) = helper.passed.recv().map_err(|_| PoseidonError::Panicked)?;
            sum.loss += passed.loss;
            sum.images += passed.images;
            helper.at = at;
        }
        // The sums of the last layers may still be in the making.
        local.wait(own.index)?;
        let loss = sum.loss / (1 + helpers.len()) as f32;
        if !loss.is_finite() {
            return Err(PoseidonError::Diverged {
                loss,
                iteration: t,
                remedy: self.remedy(),
            });
        }
        let smoothed = self
            .loss
            .map_or(loss, |before| before + LOSS_SMOOTHING * (loss - before));
        self.loss = Some(smoothed);
        self.worker
            .shared
            .globals()
            .local_iterations
            .store(t + 1, Relaxed);
        SolverMeter::Iterations.set(self.meters, t + 1);
        SolverMeter::Images.add(self.meters, sum.images);
        SolverMeter::TrainNs.add(self.meters, self.clock.now_ns() - start);
        SolverMeter::LossBits.set(self.meters, smoothed.to_bits().into());
        let rate = self.worker.job.model.spec.rate_at(t);
        SolverMeter::RateBits.set(self.meters, rate.to_bits().into());
        let [sent, received] = self.hub.traffic().totals();
        SyncMeter::BytesSent.set(self.meters, sent);
        SyncMeter::BytesReceived.set(self.meters, received);
        Ok(())
    }

    /// Advice for training that diverges.
    fn remedy(&self) -> &'static str {
        match self.cluster.plan.staleness {
            0 => "Lower base_lr",
            _ => {
                "Lower base_lr, the momentum or the staleness: gradients of old weights need smaller steps, \
                 with momentum many times smaller (docs/reference/reliable-protocol.md)"
            }
        }
    }

    fn elapsed_ns(&self) -> u64 {
        self.before_ns + self.clock.now_ns()
    }

    /// Tests the current weights; true if the target accuracy is reached.
    fn test(
        &mut self,
        t: u64,
        tester: &mut Tester,
        curve: Option<&mut CurveWriter>,
    ) -> Result<bool, PoseidonError> {
        let go_on = AtomicBool::new(false);
        let Some(found) = tester.test(self.hub.weights(), &go_on)? else {
            return Ok(false);
        };
        SolverMeter::AccuracyBits.set(self.meters, found.accuracy.to_bits().into());
        SolverMeter::CpuNs.set(self.meters, cpu_ns());
        log::info!(
            "iteration {t}: test accuracy {:.2} %, test loss {:.4}",
            found.accuracy * 100.0,
            found.loss
        );
        if let Some(curve) = curve {
            let row = CurveRow {
                node: self.worker.job.member.index,
                solver: 0,
                iteration: t,
                seconds: self.elapsed_ns() as f64 / 1e9,
                loss: self.loss.map(f64::from),
                test_loss: Some(f64::from(found.loss)),
                test_accuracy: Some(f64::from(found.accuracy)),
            };
            // A full disk costs a row of the curve, not the training.
            if let Err(error) = curve.write(&row) {
                log::warn!("a row of the learning curve is lost: {error}; training goes on");
            }
        }
        let target = self.worker.job.target_accuracy;
        Ok(target.is_some_and(|target| found.accuracy >= target))
    }

    /// Ends the run for all workers. While this worker stands at `t`, staleness lets the others run
    /// some iterations ahead, so all end one iteration after the last that they can reach.
    fn end_early(&self, t: u64) {
        log::info!("target accuracy reached");
        let ahead = match self.hub.drops_late() {
            true => 0,
            false => u64::from(self.cluster.plan.staleness) + 1,
        };
        self.hub.end_all_at(t + ahead, self.worker.job.member.index);
        self.worker.shared.globals().stop.store(1, Relaxed);
    }

    /// Writes a checkpoint of the state after `t` steps. NaN or infinity in it is an error. The
    /// state is the same on all workers, so none writes this checkpoint. Then `t` is not a clock
    /// that all members have, whatever the servers wrote.
    fn save(&self, t: u64, own: &Thread, helpers: &[Helper]) -> Result<(), PoseidonError> {
        let Some(folder) = &self.worker.folder else {
            return Ok(());
        };
        let mut arrays = self.hub.saved();
        let of = [
            ("weights", self.hub.weights()),
            ("history", self.worker.state.history()),
        ];
        for tensor in &self.worker.model.tensors {
            for (kind, from) in of {
                let mut values = vec![0.0; tensor.len];
                kernels::copy_out(from.slice(tensor.offset, tensor.len), &mut values);
                arrays.push((format!("{}.{kind}", tensor.name), values));
            }
        }
        for (name, values) in &arrays {
            if let Some(&value) = values.iter().find(|value| !value.is_finite()) {
                return Err(PoseidonError::NotFinite {
                    name: name.clone(),
                    value,
                    steps: t,
                    remedy: self.remedy(),
                });
            }
        }
        let all = |which: usize| {
            let own = [own.cursor, own.passes()][which];
            let helpers = helpers.iter().map(|helper| helper.at[which]);
            let all = std::iter::once(own).chain(helpers).map(|n| n.to_string());
            all.collect::<Vec<_>>().join(" ")
        };
        let loss = self.loss.unwrap_or(f32::NAN).to_bits();
        let notes = [
            ("cursors", all(0)),
            ("passes", all(1)),
            ("elapsed_ns", self.elapsed_ns().to_string()),
            ("loss_bits", loss.to_string()),
        ];
        let notes = notes.map(|(name, value)| (name.to_owned(), value));
        let notes = self.identity.clone().into_iter().chain(notes).collect();
        let (checkpoint, traffic) = (Checkpoint { clock: t, arrays }, self.hub.traffic());
        save(folder, &checkpoint, notes, &traffic, |message| {
            self.hub.to_coordinator(message);
        })
    }
}
