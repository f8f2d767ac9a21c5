//! How a cell with one seed becomes a run.

pub(crate) mod files;
pub(crate) mod program;
pub(crate) mod sim;
pub(crate) mod train;

pub(crate) use files::Files;

use anyhow::Result;

use crate::experiment::{Engine, Setting};
use crate::results::Run;

/// Makes a run, and tells how many iterations are done: virtual time with each test, processes as
/// they print it.
///
/// # Errors
/// The run cannot be made.
pub(crate) fn run(setting: &Setting, files: &Files, seed: u64, tell: &dyn Fn(u64)) -> Result<Run> {
    let mut run = made(setting, files, seed, tell)?;
    let known = run.figures.samples_per_s;
    run.figures.samples_per_s = known.or_else(|| run.samples_per_s());
    Ok(run)
}

fn made(setting: &Setting, files: &Files, seed: u64, tell: &dyn Fn(u64)) -> Result<Run> {
    match setting.engine {
        Engine::Sim => {
            let tell = |look: &sim::Look| tell(look.point.iterations);
            sim::run(setting, files, seed, false, &tell)
        }
        Engine::Loopback | Engine::Lab => train::run(setting, files, seed, tell),
        Engine::Program => program::run(setting, files, seed, tell),
    }
}
