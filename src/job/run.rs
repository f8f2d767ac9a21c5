//! A plan becomes a job: on the path that it names.

use anyhow::Result;

use super::conclude::Ended;
use super::out::OutFolder;
use super::plan::{JobPlan, PathPlan, PlanOf};
use super::poseidon::train_poseidon;
use super::train::train;
use crate::node::Stop;

/// Runs the job, with its results in `out`. A signal ends it early.
///
/// # Errors
/// It could not be started, or its weights or its report could not be written; the message says
/// where the weights are.
pub fn run(job: &JobPlan, out: OutFolder, stop: &Stop) -> Result<Ended> {
    match &job.path {
        PathPlan::Stream(own) => train(PlanOf { job, own }, out, stop),
        PathPlan::Poseidon(own) => train_poseidon(PlanOf { job, own }, out, stop),
    }
}
