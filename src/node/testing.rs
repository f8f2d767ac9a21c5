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
use crate::solver::data::Shard;
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
    /// Iterations of the cluster between tests, those of other nodes counted.
    pub(super) every: u64,
    /// Which tests are this component's, of all: where nodes take turns, the K-th of N makes each
    /// N-th test, from test K on.
    pub(super) turn: Shard,
    /// End the job when a test reaches this share of right answers.
    pub(super) target_accuracy: Option<f32>,
}

impl Schedule {
    /// The first test from `iteration` on: at once if the present interval is this component's.
    fn first(&self, iteration: u64) -> u64 {
        let Shard { index, of } = self.turn;
        if iteration / self.every % u64::from(of) == u64::from(index) {
            iteration
        } else {
            self.after(iteration)
        }
    }

    /// The next test of this component after `iteration`.
    fn after(&self, iteration: u64) -> u64 {
        let Shard { index, of } = self.turn;
        let (index, of) = (u64::from(index), u64::from(of));
        let test = iteration / self.every + 1;
        (test + (index + of - test % of) % of) * self.every
    }
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
            next: schedule.first(shared.globals().iterations()),
            schedule,
        }
    }

    /// Whether a test is due; then the next one is due an interval later.
    pub(super) fn is_due(&mut self, shared: &SharedWeights) -> bool {
        let iteration = shared.globals().iterations();
        let due = iteration >= self.next;
        if due {
            self.next = self.schedule.after(iteration);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The iterations at which the `index`-th of `of` components tests, every 100 from `begin` on.
    fn tests(index: u32, of: u32, begin: u64) -> Vec<u64> {
        let schedule = Schedule {
            node: 0,
            index: 0,
            every: 100,
            turn: Shard { index, of },
            target_accuracy: None,
        };
        let first = schedule.first(begin);
        let next = |at: &u64| Some(schedule.after(*at));
        std::iter::successors(Some(first), next).take(4).collect()
    }

    #[test]
    fn nodes_take_turns() {
        assert_eq!(tests(0, 1, 0), [0, 100, 200, 300]);
        assert_eq!(tests(0, 3, 0), [0, 300, 600, 900]);
        assert_eq!(tests(1, 3, 0), [100, 400, 700, 1000]);
        assert_eq!(tests(2, 3, 0), [200, 500, 800, 1100]);
        // A solver that goes on tests at once if the interval is its own.
        assert_eq!(tests(1, 3, 430), [430, 700, 1000, 1300]);
        assert_eq!(tests(2, 3, 430), [500, 800, 1100, 1400]);
    }

    /// What others have made comes in leaps: a turn that was leapt over is not made up for.
    #[test]
    fn each_test_is_made_by_one_of_all() {
        for at in 0..5_000 {
            let of = |index| tests(index, 4, at)[1..].to_vec();
            let mut all: Vec<u64> = (0..4).flat_map(of).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 12, "from {at}");
        }
    }
}
