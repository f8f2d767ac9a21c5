//! `dogwild-study twin`: one training in virtual time, its accuracy on the way.

use std::path::Path;

use anyhow::{Result, bail};
use dogwild::cli::args;
use dogwild::cli::stream_args::{MergeArg, PrecisionArg};
use dogwild::job::Pause;
use dogwild::settings::{BurstSettings, FlowSettings};
use dogwild::solver::data::Source;

use crate::engine::Files;
use crate::engine::sim::{self, Look};
use crate::experiment::{Link, Model, Nodes, Rate, Setting, Slow, Stop};
use crate::results::Ended;
use crate::seeds;

/// Arguments of `dogwild-study twin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A built-in model or a solver file
    #[arg(long, value_name = "NAME|FILE", default_value = "lenet")]
    solver: String,
    /// Pictures: digits, mnist:DIR or cifar10:DIR
    #[arg(long, value_name = "SOURCE", default_value = "digits")]
    data: Source,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=255))]
    nodes: u16,
    /// Nodes that master a part of the weights, the first so many [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    masters: Option<u16>,
    /// Solvers on each node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    solvers: u16,
    /// Iterations of the whole cluster
    #[arg(long, value_name = "N", default_value_t = 900)]
    iterations: u64,
    /// Iterations between tests
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    test_every: u64,
    /// Test pictures, whole hundreds
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..))]
    test_images: u32,
    /// Time of a step of a solver, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = above_0)]
    step_ms: f64,
    /// How many times slower the last node is
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = above_0)]
    slowest: f64,
    /// Share by which a step may take more or less
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = args::share)]
    jitter: f64,
    /// Time for a frame on the way, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.1, value_parser = above_0)]
    delay_ms: f64,
    /// Bytes per second that each node may send, as 64MB, or max
    #[arg(long, value_name = "RATE", default_value = "64MB", value_parser = args::rate)]
    rate: args::Rate,
    /// Share of frames lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = args::share)]
    loss: f64,
    /// Losses in bursts (Gilbert-Elliott), on each way between two nodes by itself: chance that a
    /// good one turns bad, that a bad one turns good, and of a loss while bad (1 if not given) and
    /// good (0)
    #[arg(long, value_name = "P,R[,BAD[,GOOD]]", value_parser = args::bursts)]
    loss_burst: Option<BurstSettings>,
    /// Share of frames that arrive twice
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = args::share)]
    duplicate: f64,
    /// Share of frames that arrive up to 10 ms late
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = args::share)]
    reorder: f64,
    /// A node stands still: from so many seconds of training on, for so many. Repeatable
    #[arg(long, value_name = "NODE:FROM:SECONDS")]
    pause: Vec<Pause>,
    /// How deltas are merged
    #[arg(long, value_enum, default_value = "mean")]
    merge: MergeArg,
    /// How weights travel
    #[arg(long, value_enum, default_value = "f32")]
    precision: PrecisionArg,
    /// Chunks that moved most go first
    #[arg(long)]
    sparse: bool,
    /// Do not shorten steps when the loss rises
    #[arg(long)]
    incautious: bool,
    /// Seed of weights, pictures, times and network
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Train so many times, with seeds from --seed on, and show median and range
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Stop at the first test with this share of right answers, and print when that was
    #[arg(long, value_name = "SHARE", value_parser = args::share)]
    target_accuracy: Option<f64>,
}

fn above_0(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (1e-6..=1e9).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is not a number above 0, as 0.5 or 10")),
    }
}

impl Args {
    /// The same as an experiment's cell.
    fn setting(&self) -> Result<Setting> {
        let slow = (self.slowest != 1.0).then_some(Slow {
            node: self.nodes - 1,
            times: self.slowest,
        });
        let setting = Setting {
            model: Model {
                solver: self.solver.clone(),
                data: self.data.to_string(),
                test_images: self.test_images,
            },
            stop: Stop {
                iterations: self.iterations,
                test_every: self.test_every,
                target: self.target_accuracy,
                at_target: self.target_accuracy.is_some(),
            },
            nodes: Nodes {
                count: self.nodes,
                solvers: self.solvers,
                step_ms: self.step_ms,
                jitter: self.jitter,
                slow: slow.into_iter().collect(),
                pauses: self.pause.clone(),
                cautious: !self.incautious,
                ..Nodes::default()
            },
            link: Link {
                rate: Rate(None),
                delay_ms: self.delay_ms,
                loss: self.loss,
                loss_burst: self.loss_burst,
                duplicate: self.duplicate,
                reorder: self.reorder,
                ..Link::default()
            },
            stream: FlowSettings {
                merge: self.merge.into(),
                masters: self.masters,
                precision: self.precision.dtype()?,
                sparse: self.sparse,
                rate_bytes_per_s: self.rate.0,
                ..FlowSettings::default()
            },
            ..Setting::default()
        };
        setting.validate()?;
        Ok(setting)
    }

    /// Trains with one seed or several, and prints the results.
    pub(crate) fn run(self) -> Result<()> {
        Pause::check(&self.pause, self.nodes)?;
        let (setting, files) = (self.setting()?, Files::in_folder(Path::new("")));
        if self.seeds > 1 {
            let seeds = self.seed..self.seed + u64::from(self.seeds);
            return seeds::run(seeds, self.target_accuracy, |seed| {
                sim::run(&setting, &files, seed, false, &|_| {})
            });
        }
        let tell = |look: &Look| dogwild_lab::say!("{look}");
        let run = sim::run(&setting, &files, self.seed, true, &tell)?;
        if run.ended == Ended::Diverged {
            bail!("diverged at iteration {}", run.iterations);
        }
        match (self.target_accuracy, run.ended) {
            (Some(target), Ended::Done) => bail!("no test reached {} %", target * 100.0),
            _ => Ok(()),
        }
    }
}
