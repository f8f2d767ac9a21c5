//! `dogwild tester`: a component that only tests.

use std::path::PathBuf;

use anyhow::Result;

use super::args;
use super::given::{Flags, Given};
use super::pictures::pictures;
use crate::node::{run_tester, stop_on_signals};
use crate::settings::TesterSettings;
use crate::solver::data::Source;

/// Arguments of `dogwild tester`.
pub(super) type Args = Given<TesterFlags>;

/// Flags of `dogwild tester`.
#[derive(Debug, clap::Args)]
pub(super) struct TesterFlags {
    /// The node's buffer (dogwild init makes it)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// Model: built-in (lenet, lenet_no_momentum, cifar10_quick) or a Caffe solver file
    #[arg(long, value_name = "NAME|FILE", default_value = "lenet")]
    solver: String,
    /// Pictures: digits, mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE")]
    data: Option<Source>,
    /// This node, from 0 [default: what the streamer of the buffer says]
    #[arg(long, value_name = "K")]
    node: Option<u16>,
    /// Iterations of the cluster between tests [default: the solver file's test_interval]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    test_every: Option<u64>,
    /// Test pictures of a test; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    test_images: usize,
    /// End the job when a test reaches this share of right answers
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", value_parser = args::share_f32)]
    target_accuracy: Option<f32>,
    /// Append rows of the learning curve to this CSV file
    #[arg(long, value_name = "FILE")]
    curve: Option<PathBuf>,
}

impl Flags for TesterFlags {
    type Settings = TesterSettings;

    fn settings(self) -> Result<TesterSettings> {
        Ok(TesterSettings {
            buffer: self.buffer,
            solver: self.solver,
            data: self.data,
            node: self.node,
            test_every: self.test_every,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            curve: self.curve,
        })
    }
}

impl Given<TesterFlags> {
    pub(super) fn run(self) -> Result<()> {
        let metrics = self.metrics();
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let spec = args::model(&settings.solver)?;
        let data = pictures(settings.data.clone(), &settings.solver, &spec)?;
        let _serving = metrics.serve(&settings.buffer)?;
        run_tester(&settings.job(spec, data), &stop)?;
        Ok(stop.check()?)
    }
}
