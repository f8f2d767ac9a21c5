//! `dogwild worker`: computes gradients on a buffer and keeps it in step with the cluster.

use std::path::PathBuf;

use anyhow::Result;

use super::cluster_args::{MemberArgs, ModelArgs, OverlapArg, Slow};
use super::poseidon_flags::with_flags;
use crate::node::{TEST_IMAGES, stop_on_signals};
use crate::poseidon::{WorkerJob, run_worker};

/// Arguments of `dogwild worker`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worker's buffer (dogwild init makes it, with the session of the cluster)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// The data is this worker's own; else it takes its share
    #[arg(long)]
    private_data: bool,
    /// When layers are sent
    #[arg(long, value_enum, default_value = "wfbp")]
    overlap: OverlapArg,
    /// Makes a worker slow on purpose, as 1:10 (worker 1, ten times): it rests after each pass
    #[arg(long, value_name = "WORKER:FACTOR")]
    slow: Option<Slow>,
    /// Iterations between tests by worker 0; 0: none [default: the solver file's test_interval]
    #[arg(long, value_name = "N")]
    test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all
    #[arg(long, value_name = "N", default_value_t = TEST_IMAGES)]
    test_images: usize,
    /// End when a test reaches this share of right answers
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", value_parser = super::args::share_f32)]
    target_accuracy: Option<f32>,
    /// Append rows of the learning curve to this CSV file
    #[arg(long, value_name = "FILE")]
    curve: Option<PathBuf>,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl Args {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it ended early.
    pub fn run(mut self) -> Result<()> {
        let stop = stop_on_signals()?;
        let model = self.model.job()?;
        let index = self.member.index;
        let own = self.slow.filter(|slow| slow.worker == index);
        let job = WorkerJob {
            slow: own.map_or(1.0, |slow| slow.factor),
            member: self.member.job()?,
            buffer: self.buffer,
            test_every: self.test_every.unwrap_or(model.spec.test_interval),
            model,
            data: self.model.data.unwrap_or_default(),
            private_data: self.private_data,
            overlap: self.overlap.overlap(),
            seed: self.model.seed,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            curve: self.curve,
        };
        run_worker(&job, &stop).map_err(with_flags)?;
        Ok(stop.check()?)
    }
}
