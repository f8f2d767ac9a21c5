//! `dogwild-plan`: what synchronising a net costs a cluster, before it is built.
//!
//! Holds the command line. `dogwild_tools::nets` says what the net is, `cluster` which node sends
//! what, `schedule` how long an iteration takes, `emulate` runs it, `report` prints. The model is
//! in docs/guide/planning.md.

mod cluster;
mod emulate;
mod report;
mod schedule;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use dogwild::cli::finish;
use dogwild::poseidon::{ClusterSize, Partition, Recording};
use dogwild_tools::nets::{self, Engine, Layer, Stated};

use cluster::Place;
use emulate::Part;
use report::Report;
use schedule::Next;

/// Bytes per node, choice of schemes, iteration time and speed-up of a net on a cluster, by the
/// rules of the Poseidon papers.
#[derive(Debug, Parser)]
#[command(
    name = "dogwild-plan",
    version = dogwild::cli::version::text(env!("DOGWILD_COMMIT")),
    max_term_width = 100
)]
struct Cli {
    /// alexnet, vgg16, vgg19, vgg19-22k, googlenet, inception-v3, resnet-152, a net prototxt, or a
    /// layer table (.csv)
    net: String,
    /// Workers, one on each node
    #[arg(long, value_name = "P", value_parser = members)]
    nodes: u32,
    /// Servers [default: one on each node]
    #[arg(long, value_name = "P2", value_parser = members)]
    servers: Option<u32>,
    /// Images per worker and iteration
    #[arg(long, value_name = "K")]
    batch: u32,
    /// Of each node's link, each way, as 10gbit, 800mbit (bits/s) or 1.25GB (bytes/s)
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = bandwidth)]
    bandwidth: f64,
    /// Bytes that a node's processor handles in a second, in and out together (copies, system
    /// calls, sums), as 2GB or 10gbit [default: it takes no time]
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = bandwidth)]
    host: Option<f64>,
    /// Servers on nodes of their own, instead of on those of the workers
    #[arg(long)]
    apart: bool,
    /// Bytes of a KV pair, at most
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, value_parser = clap::value_parser!(u64).range(4..))]
    pair_bytes: u64,
    /// How tensors are dealt to servers
    #[arg(long, value_enum, default_value = "pairs")]
    partition: PartitionArg,
    /// When the next forward pass may begin
    #[arg(long, value_enum, default_value = "all")]
    next: Next,
    /// The framework whose single-node throughput is taken [default: the first that the papers
    /// state]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Images per second of one node alone, instead of the papers' figure
    #[arg(long, value_name = "IMG_PER_S", value_parser = throughput)]
    throughput: Option<f64>,
    /// Channels, height and width of an image, for nets that do not say it, as 3x224x224
    #[arg(long, value_name = "CxHxW", value_parser = input)]
    input: Option<[usize; 3]>,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
    /// Also write what `dogwild worker --compute replay:FILE` spends its time with
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    emulation: emulate::Settings,
    /// Also draw speed-up over nodes (SVG)
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// See [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PartitionArg {
    /// In KV pairs, spread evenly
    Pairs,
    /// Whole (stock TensorFlow)
    Tensor,
}

impl From<PartitionArg> for Partition {
    fn from(arg: PartitionArg) -> Self {
        match arg {
            PartitionArg::Pairs => Self::Pairs,
            PartitionArg::Tensor => Self::Tensor,
        }
    }
}

/// A net on a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) net: String,
    pub(crate) layers: Vec<Layer>,
    pub(crate) place: Place,
    pub(crate) bytes_per_s: f64,
    /// Of a node's processor, for bytes in and out; `None`: it takes no time.
    pub(crate) host_bytes_per_s: Option<f64>,
    pub(crate) next: Next,
    /// Of one node alone, and where the figure comes from.
    pub(crate) images_per_s: f64,
    pub(crate) throughput_source: String,
    /// Seconds of an iteration of one node alone.
    pub(crate) alone_s: f64,
    /// Seconds of each layer, forward and backward.
    pub(crate) times: Vec<[f64; 2]>,
}

impl Task {
    fn new(cli: &Cli) -> Result<Self> {
        let (layers, stated) = nets::find(&cli.net, cli.input)?;
        let servers = cli.servers.unwrap_or(cli.nodes);
        if cli.servers == Some(0) {
            bail!("0 servers: the schemes that are compared need some, give 1 or more (--servers)");
        }
        let cluster = ClusterSize::new(cli.nodes, servers, cli.batch)?;
        let place = Place {
            cluster,
            apart: cli.apart,
            pair_bytes: cli.pair_bytes,
            partition: cli.partition.into(),
        };
        let pairs = cluster::pair_count(layers.iter().map(|layer| layer.shape), &place);
        if servers as usize > pairs {
            bail!(
                "{servers} servers, but {} has only {pairs} KV pairs to hold: use fewer servers, or smaller \
                 pairs (--pair-bytes)",
                cli.net
            );
        }
        let (images_per_s, throughput_source) = match cli.throughput {
            Some(given) => (given, "--throughput".to_owned()),
            None => {
                let wanted = |stated: &&Stated| cli.engine.is_none_or(|e| e == stated.engine);
                let found = stated.iter().find(wanted).with_context(|| {
                    let net = &cli.net;
                    format!("the papers state no such throughput for `{net}`: give --throughput IMG_PER_S")
                })?;
                (found.images_per_s, found.source.to_owned())
            }
        };
        let alone_s = f64::from(cli.batch) / images_per_s;
        Ok(Self {
            net: cli.net.clone(),
            times: nets::times(&layers, alone_s),
            alone_s,
            layers,
            place,
            bytes_per_s: cli.bandwidth,
            host_bytes_per_s: cli.host,
            next: cli.next,
            images_per_s,
            throughput_source,
        })
    }

    /// A smaller cluster on which everything takes as long: weights, factors and bandwidth are all
    /// divided by `scale` (M, N and K by its root each).
    pub(crate) fn scaled(&self, scale: f64) -> Self {
        let side = |side: u64| ((side as f64 / scale.sqrt()).round() as u64).max(1);
        let mut task = self.clone();
        for layer in &mut task.layers {
            layer.shape.outputs = side(layer.shape.outputs);
            layer.shape.inputs = side(layer.shape.inputs);
        }
        task.place.cluster = task
            .place
            .cluster
            .with_batch(side(task.place.cluster.batch()) as u32);
        task.place.pair_bytes = ((task.place.pair_bytes as f64 / scale) as u64).max(4);
        task.bytes_per_s /= scale;
        // It runs on this host, which takes its own time.
        task.host_bytes_per_s = None;
        task
    }

    /// What a worker replays to take as long.
    pub(crate) fn recording(&self) -> Recording {
        let images = self.place.cluster.batch() as u32;
        nets::recording(&self.layers, &self.times, images)
    }
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .format_target(false)
        .init();
    finish("dogwild-plan", run())
}

fn run() -> Result<()> {
    // A part of an emulation is this program again.
    let mut words = std::env::args_os();
    if words.nth(1).is_some_and(|word| word == "component") {
        return Part::parse_from(std::iter::once("component".into()).chain(words)).run();
    }
    let cli: Cli = dogwild::cli::args::parse();
    let task = Task::new(&cli)?;
    let mut report = Report::new(&task);
    if cli.emulation.emulate {
        report.emulation = Some(emulate::run(&task, &cli.emulation)?);
    }
    if cli.json {
        dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        dogwild_lab::say!("{}", report.table());
    }
    if let Some(path) = &cli.recording {
        std::fs::write(path, task.recording().to_json())
            .with_context(|| format!("cannot write the recording {}", path.display()))?;
    }
    if let Some(path) = &cli.plot {
        report::curve(&task).write_svg(path)?;
    }
    Ok(())
}

/// Zero is told later, with what it would mean.
fn members(text: &str) -> Result<u32, String> {
    let most = u32::from(u16::MAX);
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| {
        format!("`{text}` is not a number of nodes: give a whole number, at most {most}")
    })
}

/// Bytes per second of a bandwidth.
fn bandwidth(text: &str) -> Result<f64, String> {
    let wrong = || {
        format!(
            "`{text}` is no bandwidth: write 10gbit or 800mbit (bits/s), or 1.25GB or 100MB (bytes/s)"
        )
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let bytes = match &text[digits.len()..] {
        "" => return Err(format!("{}; the unit is missing", wrong())),
        "bit" => 1.0 / 8.0,
        "kbit" => 1e3 / 8.0,
        "mbit" | "Mbit" => 1e6 / 8.0,
        "gbit" | "Gbit" | "GbE" => 1e9 / 8.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err(wrong()),
    };
    let rate = digits.parse::<f64>().map_err(|_| wrong())? * bytes;
    if rate.is_finite() && rate > 0.0 {
        Ok(rate)
    } else {
        Err(format!(
            "over a bandwidth of `{text}` nothing would ever arrive: give more than 0"
        ))
    }
}

fn throughput(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err(format!(
            "`{text}` is no throughput: give images per second, above 0"
        )),
    }
}

fn input(text: &str) -> Result<[usize; 3], String> {
    let sides: Vec<usize> = text
        .split('x')
        .filter_map(|side| side.parse().ok())
        .collect();
    match <[usize; 3]>::try_from(sides) {
        Ok(sides)
            if sides.iter().all(|side| (1..=65_536).contains(side))
                && text.split('x').count() == 3 =>
        {
            Ok(sides)
        }
        _ => Err(format!(
            "`{text}` is no shape of an image: write channels, height and width, as 3x224x224"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_have_units() {
        assert_eq!(bandwidth("10gbit"), Ok(1.25e9));
        assert_eq!(bandwidth("1.5MB"), Ok(1.5e6));
        assert_eq!(bandwidth("8000000bit"), Ok(1e6));
        for (wrong, says) in [
            ("10", "unit is missing"),
            ("0gbit", "nothing would ever arrive"),
            ("-1GB", "nothing would ever arrive"),
            ("fast", "no bandwidth"),
            ("3apples", "no bandwidth"),
        ] {
            let said = bandwidth(wrong).expect_err(wrong);
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn shapes_have_three_sides() {
        assert_eq!(input("3x224x224"), Ok([3, 224, 224]));
        for wrong in ["", "224", "3x0x5", "3x2x2x2", "3x4xfive", "3xax4x5"] {
            assert!(input(wrong).is_err(), "{wrong}");
        }
    }
}
