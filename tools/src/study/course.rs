//! What tests found on the way of one training.

use std::fmt;

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Iterations of the cluster.
    pub(crate) iteration: u64,
    /// Virtual seconds.
    pub(crate) s: f64,
    /// Mean training loss since the test before.
    pub(crate) loss: f32,
    /// Shares of right answers: of what the masters have, and of node 0's replica.
    pub(crate) accuracy: f64,
    pub(crate) replica: f64,
    /// Mean length of steps, in those of the solver file.
    pub(crate) stride: f64,
    /// Median age of a weight, in steps of a solver.
    pub(crate) age_steps: f64,
    /// Times that solvers halved their steps.
    pub(crate) halvings: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "iteration {:5}  {:7.2} s  loss {:.4}  accuracy {:.2} %  replica {:.2} %  stride {:.2}  age {:.1} steps  halved {}",
            self.iteration,
            self.s,
            self.loss,
            self.accuracy * 100.0,
            self.replica * 100.0,
            self.stride,
            self.age_steps,
            self.halvings,
        )
    }
}

/// A training from its first test to its end.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) points: Vec<Point>,
    /// Iteration at which it diverged.
    pub(crate) diverged: Option<u64>,
    target: Option<f64>,
}

impl Course {
    pub(crate) fn new(target: Option<f64>) -> Self {
        Self {
            points: Vec::new(),
            diverged: None,
            target,
        }
    }

    /// The first test at the target; `None` where there is no target, too.
    pub(crate) fn reached(&self) -> Option<&Point> {
        let target = self.target?;
        self.points.iter().find(|point| point.accuracy >= target)
    }
}
