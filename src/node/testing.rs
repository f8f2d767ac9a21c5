//! Tests on the way: when the next one is due, the row it gives, and the end of a job that has
//! learnt enough.
//!
//! Reads positions, writes rows, meters and, once the target is reached, the switch that ends all
//! components.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::clock::cpu_ns;
use super::positions::Positions;
use super::solver_error::SolverError;
use super::tester::Tester;
use crate::watch::SolverMeter;
use crate::watch::curve::{CurveRow, CurveWriter};
use crate::weights::{METERS, SharedWeights};

/// Which component tests, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Node, for the rows of the curve.
    pub(super) node: u16,
    /// Component on the node, for the rows of the curve.
    pub(super) index: u32,
    /// Iterations of the cluster between tests.
    pub(super) every: u64,
    /// End the job when a test reaches this share of right answers.
    pub(super) target_accuracy: Option<f32>,
}

/// What is known when a test is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Time of training so far, ns.
    pub(super) elapsed_ns: u64,
    /// The smoothed loss of the component that tests; `None`: it does not train.
    pub(super) loss: Option<f32>,
}

/// The tests of one component.
pub(super) struct Testing {
    tester: Tester,
    positions: Positions,
    curve: Option<CurveWriter>,
    schedule: Schedule,
    next: u64,
}

impl Testing {
    /// Tests from the present iteration on.
    pub(super) fn new(
        tester: Tester,
        curve: Option<CurveWriter>,
        schedule: Schedule,
        shared: &SharedWeights,
    ) -> Self {
        Self {
            tester,
            positions: Positions::default(),
            curve,
            next: shared.globals().iterations(),
            schedule,
        }
    }

    /// Whether a test is due; then the next one is due an interval later.
    pub(super) fn is_due(&mut self, shared: &SharedWeights) -> bool {
        let iteration = shared.globals().iterations();
        let due = iteration >= self.next;
        if due {
            self.next = (iteration / self.schedule.every + 1) * self.schedule.every;
        }
        due
    }

    /// Tests what the masters have; nothing is told of a test that `stop` cuts short.
    pub(super) fn test(
        &mut self,
        shared: &SharedWeights,
        meters: &[AtomicU64; METERS],
        moment: Moment,
        stop: &AtomicBool,
    ) -> Result<(), SolverError> {
        let iteration = shared.globals().iterations();
        let Some(found) = self.tester.test(self.positions.of(shared), stop)? else {
            return Ok(());
        };
        SolverMeter::AccuracyBits.set(meters, u64::from(found.accuracy.to_bits()));
        SolverMeter::CpuNs.set(meters, cpu_ns());
        log::info!(
            "iteration {iteration}: test accuracy {:.2} %, test loss {:.4}",
            found.accuracy * 100.0,
            found.loss
        );
        let Schedule { node, index, .. } = self.schedule;
        if let Some(curve) = &mut self.curve {
            let row = CurveRow {
                node,
                solver: index,
                iteration,
                seconds: moment.elapsed_ns as f64 / 1e9,
                loss: moment.loss.map(f64::from),
                test_loss: Some(f64::from(found.loss)),
                test_accuracy: Some(f64::from(found.accuracy)),
            };
            // A full disk costs a row of the curve, not the training.
            if let Err(error) = curve.write(&row) {
                log::warn!("a row of the learning curve is lost: {error}; training goes on");
            }
        }
        let target = self.schedule.target_accuracy;
        if target.is_some_and(|target| found.accuracy >= target) {
            log::info!("target accuracy reached");
            shared.globals().stop.store(1, Relaxed);
        }
        Ok(())
    }
}
