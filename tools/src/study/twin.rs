//! `dogwild-study twin`: one training in virtual time, its accuracy on the way.

use anyhow::{Result, bail};
use dogwild::cli::args;
use dogwild::cli::stream_args::{MergeArg, PrecisionArg};
use dogwild::sim::training::{Solvers, Training, fleet, weights_of};
use dogwild::sim::{Faults, Limit};
use dogwild::solver::data::{DataSet, Source};
use dogwild::stream::{Config, Deltas, Merge, chunk_weights_for};
use dogwild::weights::Writes;
use dogwild::wire;

use crate::course::{Course, Point};
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

/// Bytes of a frame: UDP on Ethernet.
const MTU: usize = 1472;

fn above_0(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (1e-6..=1e9).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is not a number above 0, as 0.5 or 10")),
    }
}

impl Args {
    fn config(&self, weights: usize) -> Result<Config> {
        let precision = self.precision.dtype()?;
        let chunk_weights = chunk_weights_for(MTU, self.nodes, precision).unwrap_or(16);
        Ok(Config {
            session: 1,
            fingerprint: 1,
            data: 0,
            first_weights: 0,
            incarnation: 1,
            node: 0,
            nodes: self.nodes,
            masters: self.masters.unwrap_or(self.nodes),
            chunk_weights,
            chunks: weights.div_ceil(chunk_weights as usize) as u32,
            deltas: Deltas::ExactlyOnce,
            merge: match self.merge {
                MergeArg::Mean => Merge::Mean,
                MergeArg::Sum => Merge::Sum,
            },
            precision,
            sparse: self.sparse,
            writes: Writes::Racy,
            window_frames: (2e6 / MTU as f64) as u32,
        })
    }

    fn faults(&self, config: &Config) -> Faults {
        let payload = config.precision.payload_len(config.chunk_weights as usize);
        let known_frame_bytes = wire::HEADER_LEN + wire::acks_len(self.nodes as u8) + payload;
        Faults {
            drop: self.loss,
            delay_ns: (self.delay_ms * 1e6) as u64,
            limit: self.rate.0.map(|bytes_per_s| Limit {
                bytes_per_s,
                burst_bytes: (bytes_per_s * 0.02) as usize + 8 * known_frame_bytes,
                known_frame_bytes,
            }),
            ..Faults::default()
        }
    }

    /// Trains with one seed or several, and prints the results.
    pub(crate) fn run(self) -> Result<()> {
        let data = self.data.load()?;
        if self.seeds > 1 {
            return seeds::run(self.seed..self.seed + u64::from(self.seeds), |seed| {
                self.train(&data, seed, |_| {})
            });
        }
        let course = self.train(&data, self.seed, |point| dogwild_lab::say!("{point}"))?;
        if let Some(at) = course.diverged {
            bail!("diverged at iteration {at}");
        }
        match (self.target_accuracy, course.reached()) {
            (Some(target), None) => bail!("no test reached {} %", target * 100.0),
            _ => Ok(()),
        }
    }

    /// One training; each test is told as it is made.
    fn train(&self, data: &DataSet, seed: u64, tell: impl Fn(&Point)) -> Result<Course> {
        let spec = args::model(&self.solver)?;
        let config = self.config(weights_of(&spec, data)?)?;
        let mut step_ns = vec![(self.step_ms * 1e6) as u64; usize::from(self.nodes)];
        if let Some(last) = step_ns.last_mut() {
            *last = (*last as f64 * self.slowest) as u64;
        }
        let solvers = Solvers {
            spec,
            per_node: self.solvers,
            step_ns,
            jitter: self.jitter,
            cautious: !self.incautious,
            seed,
        };
        let name = format!("dogwild-twin-{}-{seed}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let fleet = fleet(&config, &solvers, data, &folder)?;
        // The state files are mapped; their names are not needed any more.
        std::fs::remove_dir_all(&folder)?;
        let mut training = Training::new(&fleet, solvers, data, self.faults(&config))?;
        if !training.wait_ready() {
            bail!("the streamers have not seen all ranges within a virtual minute");
        }
        let mut course = Course::new(self.target_accuracy);
        let mut next = self.test_every;
        while training.iterations() < self.iterations && course.reached().is_none() {
            let Some(loss) = training.run(next.min(self.iterations)) else {
                course.diverged = Some(training.iterations());
                break;
            };
            next += self.test_every;
            let point = self.test(&mut training, data, loss)?;
            tell(&point);
            course.points.push(point);
        }
        Ok(course)
    }

    fn test(&self, training: &mut Training<'_>, data: &DataSet, loss: f32) -> Result<Point> {
        let found = training.test(data, self.test_images as usize)?;
        let replica = training.test_replica(0, data, self.test_images as usize)?;
        let streamer = training.world().streamer(0);
        let age_us = streamer.map(|one| one.ages_us().value_at_quantile(0.5));
        Ok(Point {
            iteration: training.iterations(),
            s: training.now_ns() as f64 / 1e9,
            loss,
            accuracy: found.accuracy(),
            replica: replica.accuracy(),
            stride: training.stride(),
            age_steps: age_us.unwrap_or(0) as f64 / 1e3 / self.step_ms,
            halvings: training.halvings(),
        })
    }
}
