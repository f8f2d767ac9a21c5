//! How a job ends, in a word and as an exit code. The table for users is in `docs/guide/train.md`.

use std::time::Duration;

use crate::node::{Interrupted, signal_name};

/// Time of all tests at the end of a job that did not end by itself: its user waits for the prompt.
const LAST_TESTS: Duration = Duration::from_millis(500);

/// Exit codes of programs besides those of signals (128 and the signal's number).
pub mod codes {
    /// Something went wrong.
    pub const FAILED: u8 = 1;
    /// The loss or a weight is NaN or infinite.
    pub const DIVERGED: u8 = 3;
    /// The job ended before any test reached the accuracy asked for.
    pub const TARGET_NOT_REACHED: u8 = 4;
    /// The replicas were compared and differ.
    pub const REPLICAS_DIFFER: u8 = 5;
}

/// Why and how a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All iterations were made.
    Iterations,
    /// A test has reached the accuracy asked for.
    TargetAccuracy,
    /// All iterations were made, but no test has reached the accuracy asked for.
    TargetNotReached,
    /// All iterations were made, but the replicas are not equal.
    ReplicasDiffer,
    /// The loss or a weight is NaN or infinite.
    Diverged,
    /// A signal came first.
    Interrupted(i32),
    /// Something went wrong.
    Failed,
}

/// What is known when a job's components have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// A test has reached the accuracy asked for; `None`: none was asked for.
    pub(super) reached: Option<bool>,
    /// The replicas are equal; `None`: they were not compared.
    pub(super) identical: Option<bool>,
}

impl Outcome {
    /// The end of a job whose solvers came to their own end.
    pub(super) fn of(facts: Facts) -> Self {
        match facts {
            Facts {
                identical: Some(false),
                ..
            } => Self::ReplicasDiffer,
            Facts {
                reached: Some(false),
                ..
            } => Self::TargetNotReached,
            Facts {
                reached: Some(true),
                ..
            } => Self::TargetAccuracy,
            _ => Self::Iterations,
        }
    }

    /// The word for it, `ended_by` of summary.json.
    pub fn word(self) -> &'static str {
        match self {
            Self::Iterations => "iterations",
            Self::TargetAccuracy => "target_accuracy",
            Self::TargetNotReached => "target_not_reached",
            Self::ReplicasDiffer => "replicas_differ",
            Self::Diverged => "diverged",
            Self::Interrupted(_) => "interrupted",
            Self::Failed => "failed",
        }
    }

    /// What the program ends with: 0 only if the job did what was asked.
    pub fn code(self) -> u8 {
        match self {
            Self::Iterations | Self::TargetAccuracy => 0,
            Self::TargetNotReached => codes::TARGET_NOT_REACHED,
            Self::ReplicasDiffer => codes::REPLICAS_DIFFER,
            Self::Diverged => codes::DIVERGED,
            Self::Interrupted(signal) => Interrupted(signal).code(),
            Self::Failed => codes::FAILED,
        }
    }

    /// True if the job did what was asked.
    pub fn as_asked(self) -> bool {
        self.code() == 0
    }

    /// How it ended, for the screen.
    pub fn words(self) -> String {
        match self {
            Self::Iterations => "all iterations were made".into(),
            Self::TargetAccuracy => "a test has reached --target-accuracy".into(),
            Self::TargetNotReached => "no test has reached --target-accuracy".into(),
            Self::ReplicasDiffer => {
                "the replicas differ: not every delta and position has arrived".into()
            }
            Self::Diverged => "training has diverged".into(),
            Self::Interrupted(signal) => format!("interrupted by {}", signal_name(signal)),
            Self::Failed => "the job failed".into(),
        }
    }
}

/// How a job went, as far as those who watched its components know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) outcome: Outcome,
    pub(super) train_s: f64,
    pub(super) restarts: u32,
    pub(super) replicas_identical: bool,
}

/// Time for all tests at the end; none: as long as they take, on the whole test set.
pub(super) fn last_tests(outcome: Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Interrupted(_) | Outcome::Failed | Outcome::Diverged => Some(LAST_TESTS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_a_success() {
        let end = |reached, identical| Outcome::of(Facts { reached, identical });
        assert_eq!(end(None, Some(true)), Outcome::Iterations);
        assert_eq!(end(None, None), Outcome::Iterations);
        assert_eq!(end(Some(true), Some(true)), Outcome::TargetAccuracy);
        assert_eq!(end(Some(false), Some(true)), Outcome::TargetNotReached);
        assert_eq!(end(Some(true), Some(false)), Outcome::ReplicasDiffer);
        assert_eq!(end(None, Some(false)), Outcome::ReplicasDiffer);
        let codes: Vec<u8> = [
            Outcome::Iterations,
            Outcome::TargetAccuracy,
            Outcome::Failed,
            Outcome::Diverged,
            Outcome::TargetNotReached,
            Outcome::ReplicasDiffer,
            Outcome::Interrupted(1),
            Outcome::Interrupted(2),
            Outcome::Interrupted(15),
        ]
        .map(Outcome::code)
        .into();
        assert_eq!(codes, [0, 0, 1, 3, 4, 5, 129, 130, 143]);
    }
}
