//! The loop over iterations: waits for steps, tests, writes checkpoints, and starts the passes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use super::super::client::{Client, Turn, remedy};
use super::super::error::PoseidonError;
use super::local::Local;
use super::pass::{PassResult, Thread};
use super::{Meters, Worker};
use crate::node::{Clock, SolverError, Tester, cpu_ns};
use crate::watch::curve::{CurveRow, CurveWriter};
use crate::watch::{SolverMeter, SyncMeter};

/// Share of the newest loss in the smoothed one.
const LOSS_SMOOTHING: f32 = 0.05;

/// A computing thread other than the leading one: it receives a clock, and answers with the result
/// of its pass.
struct Helper {
    go: Sender<u64>,
    passed: Receiver<(Result<PassResult, PoseidonError>, [u64; 2])>,
    /// Its place in the data and its passes.
    at: [u64; 2],
}

impl Helper {
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut thread: Thread,
        local: &'scope Local,
        client: &'scope Client,
    ) -> Self {
        let (go, clocks) = channel::<u64>();
        let (answer, passed) = channel();
        let at = [thread.cursor, thread.passes()];
        scope.spawn(move || {
            let watch = local.watch(thread.index);
            for clock in clocks {
                let passed = thread.pass(clock, client, local);
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
    client: &'l Client,
    meters: &'l Meters,
    heartbeat: &'l dyn Fn(),
    clock: Clock,
    /// Time that the run had taken at the checkpoint that it resumes from, ns.
    before_ns: u64,
    loss: Option<f32>,
}

impl<'l> Lead<'l> {
    pub(super) fn new(
        worker: &'l Worker<'l>,
        meters: &'l Meters,
        heartbeat: &'l dyn Fn(),
    ) -> Result<Self, PoseidonError> {
        let mut lead = Self {
            worker,
            client: worker.client,
            meters,
            heartbeat,
            clock: Clock::start(),
            before_ns: 0,
            loss: None,
        };
        if let Some(saved) = worker.client.resumed() {
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
        mut tester: Option<Tester>,
    ) -> Result<(), PoseidonError>
    where
        'l: 'scope,
    {
        let (client, job) = (self.client, self.worker.job);
        let mut own = threads.remove(0);
        let mut helpers: Vec<Helper> = threads
            .into_iter()
            .map(|thread| Helper::start(scope, thread, local, client))
            .collect();
        let mut curve = match &job.curve {
            Some(path) if tester.is_some() => {
                Some(CurveWriter::append(path).map_err(SolverError::from)?)
            }
            _ => None,
        };
        let start = client.book().start;
        loop {
            let waiting = self.clock.now_ns();
            let Some(turn) = client.begin()? else { break };
            let Turn {
                clock: t, missing, ..
            } = turn;
            SyncMeter::WaitNs.add(self.meters, self.clock.now_ns() - waiting);
            SyncMeter::StepsMissing.add(self.meters, missing);
            SyncMeter::StepsMissingMax.raise(self.meters, missing);
            if turn.checkpoint {
                self.save(&own, &helpers)?;
            }
            if let Some(tester) = &mut tester
                && t.is_multiple_of(job.test_every)
                && (t == 0 || t > start)
            {
                let reached = self.test(t, tester, curve.as_mut())?;
                if reached && !client.is_finishing() {
                    log::info!("target accuracy reached");
                    client.finish();
                    self.worker.buffer.shared.globals().stop.store(1, Relaxed);
                }
                if t >= client.end_at() {
                    break;
                }
            }
            self.step(t, &mut own, &mut helpers, local)?;
            client.end()?;
            (self.heartbeat)();
        }
        if !client.settle()? {
            return Ok(());
        }
        // Where late updates are dropped, the others may have come to the end without this worker's
        // last ones: its weights are those of the end.
        self.count(client.clock());
        // The last one is there too: the run may be gone on with for more iterations.
        if client.is_checkpoint_due() {
            self.save(&own, &helpers)?;
        }
        if let Some(tester) = &mut tester {
            self.test(client.clock(), tester, curve.as_mut())?;
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
        let start = self.clock.now_ns();
        for helper in &*helpers {
            helper.go.send(t).map_err(|_| PoseidonError::Panicked)?;
        }
        let mut sum = own.pass(t, self.client, local)?;
        for helper in &mut *helpers {
            let (passed, at) = helper.passed.recv().map_err(|_| PoseidonError::Panicked)?;
            let passed = passed?;
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
                remedy: remedy(self.client.plan()),
            });
        }
        let smoothed = self
            .loss
            .map_or(loss, |before| before + LOSS_SMOOTHING * (loss - before));
        self.loss = Some(smoothed);
        self.count(t + 1);
        SolverMeter::Images.add(self.meters, sum.images);
        SolverMeter::TrainNs.add(self.meters, self.clock.now_ns() - start);
        SolverMeter::LossBits.set(self.meters, smoothed.to_bits().into());
        let rate = self.worker.caffe.spec.rate_at(t);
        SolverMeter::RateBits.set(self.meters, rate.to_bits().into());
        let [sent, received] = self.client.traffic();
        SyncMeter::BytesSent.set(self.meters, sent);
        SyncMeter::BytesReceived.set(self.meters, received);
        Ok(())
    }

    /// Says that this worker has come to iteration `clock`.
    fn count(&self, clock: u64) {
        let globals = self.worker.buffer.shared.globals();
        globals.local_iterations.store(clock, Relaxed);
        SolverMeter::Iterations.set(self.meters, clock);
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
        let Some(found) = tester.test(self.client.weights(), &go_on)? else {
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

    /// Writes a checkpoint, with the places of all threads in the data.
    fn save(&self, own: &Thread, helpers: &[Helper]) -> Result<(), PoseidonError> {
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
        self.client.checkpoint(Vec::new(), notes.into())
    }
}
