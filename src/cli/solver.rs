//! `dogwild solver`: one solver on a buffer.

use std::path::PathBuf;

use anyhow::Result;

use super::args;
use super::given::{Flags, Given};
use super::pictures::pictures;
use crate::node::{TEST_IMAGES, run_solver, stop_on_signals};
use crate::settings::SolverSettings;
use crate::solver::data::{Shard, Source};

/// Arguments of `dogwild solver`.
pub(super) type Args = Given<SolverFlags>;

/// Flags of `dogwild solver`.
#[derive(Debug, clap::Args)]
pub(super) struct SolverFlags {
    /// The node's buffer (dogwild init makes it)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// Model: built-in (lenet, lenet_no_momentum, cifar10_quick) or a Caffe solver file
    #[arg(long, value_name = "NAME|FILE", default_value = "lenet")]
    solver: String,
    /// Pictures: digits, mnist:DIR, cifar10:DIR [default for LeNet: digits]
    #[arg(long, value_name = "SOURCE")]
    data: Option<Source>,
    /// This solver's number on this buffer
    #[arg(long, value_name = "K", default_value_t = 0)]
    index: u32,
    /// Solvers on each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    solvers: u32,
    /// This solver's share of the pictures, K/N: the K-th of N in the cluster [default: from
    /// --node, --nodes, --index and --solvers, as many on each node]
    #[arg(long, value_name = "K/N", value_parser = args::shard)]
    shard: Option<Shard>,
    /// This node, from 0 [default: what the streamer of the buffer says]
    #[arg(long, value_name = "K")]
    node: Option<u16>,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 2)]
    nodes: u16,
    /// Seed of the order of pictures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Iterations of the cluster between tests; 0: none [default: the solver file's test_interval]
    #[arg(long, value_name = "N")]
    test_every: Option<u64>,
    /// Which of those tests are this solver's, K/N: the K-th of each N, where nodes take turns
    /// [default: all]
    #[arg(long, value_name = "K/N", value_parser = args::shard)]
    test_turn: Option<Shard>,
    /// Test pictures of a test on the way; 0: all
    #[arg(long, value_name = "N", default_value_t = TEST_IMAGES)]
    test_images: usize,
    /// End when a test reaches this share of right answers
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", value_parser = args::share_f32)]
    target_accuracy: Option<f32>,
    /// Make at most so many steps a second: a machine then has room for many solvers, each with a
    /// pace of its own
    #[arg(long, allow_hyphen_values = true, value_name = "R", value_parser = args::steps_per_s)]
    pace_steps: Option<f64>,
    /// Wait rather than compute from what is known of another node's range if that is older than so
    /// many local steps
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    max_age: Option<u64>,
    /// Append rows of the learning curve to this CSV file
    #[arg(long, value_name = "FILE")]
    curve: Option<PathBuf>,
}

impl Flags for SolverFlags {
    type Settings = SolverSettings;

    fn settings(self) -> Result<SolverSettings> {
        Ok(SolverSettings {
            buffer: self.buffer,
            solver: self.solver,
            data: self.data,
            index: self.index,
            solvers: self.solvers,
            shard: self.shard,
            node: self.node,
            nodes: self.nodes,
            seed: self.seed,
            test_every: self.test_every,
            test_turn: self.test_turn,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            pace_steps: self.pace_steps,
            max_age: self.max_age,
            curve: self.curve,
        })
    }
}

impl Given<SolverFlags> {
    pub(super) fn run(self) -> Result<()> {
        let metrics = self.metrics();
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let spec = args::model(&settings.solver)?;
        let data = pictures(settings.data.clone(), &settings.solver, &spec)?;
        let _serving = metrics.serve(&settings.buffer)?;
        run_solver(&settings.job(spec, data), &stop)?;
        Ok(stop.check()?)
    }
}
