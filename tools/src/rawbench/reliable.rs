//! `dogwild-rawbench reliable`: what an iteration of the reliable path costs, compared with bare
//! TCP connections that move as many bytes, and with Gloo's all-reduce of as many weights.
//!
//! Takes turns, so that other load meets all alike. `cluster` runs the members, `plain` the bare
//! connections, `gloo` PyTorch. Everything is on loopback. CPU time and page faults are those of
//! all members together.

mod cluster;
mod gloo;
mod plain;
mod usage;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use dogwild::poseidon::Policy;
use dogwild::watch::screen::Columns;
use serde::Serialize;

use super::machine::Machine;
use super::rounds::{self, Spread};

/// Iterations of each run that are not measured: memory is new in them.
const WARM_UP: u64 = 2;

/// Arguments of `dogwild-rawbench reliable`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of weights (AlexNet's)
    #[arg(long, value_name = "N", default_value_t = 61_300_000)]
    weights: usize,
    /// Layers of equal size that the weights make up
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    layers: u32,
    /// How many workers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// How many servers; 0: workers hold all (scheme p2p)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    servers: u16,
    /// How gradients travel
    #[arg(long, value_name = "SCHEME", default_value = "ps")]
    scheme: Policy,
    /// What becomes of the mean gradient: it goes back as it is, as an all-reduce does it, or a
    /// step of SGD is made
    #[arg(long, value_enum, default_value = "mean")]
    step: Step,
    /// Bytes of a KV pair, at most
    #[arg(long, value_name = "BYTES", default_value_t = dogwild::poseidon::PAIR_BYTES)]
    pair_bytes: u64,
    /// Iterations that are measured in each round, after two that are not
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    iterations: u64,
    /// Measure so many times, all in turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = rounds::count())]
    rounds: u32,
    /// Another program that does the same: PyTorch's all-reduce over Gloo (Debian: python3-torch)
    #[arg(long, value_enum)]
    compare: Option<Peer>,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    /// The mean gradient
    Mean,
    /// SGD with momentum
    Sgd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Peer {
    /// All-reduce by Gloo, a process for each worker
    Gloo,
}

/// What one iteration took.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    seconds: f64,
    /// Of all members together.
    cpu_s: f64,
    /// Bytes that were sent, each once.
    sent_bytes: f64,
    page_faults: f64,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
struct Round {
    ours: Cost,
    plain: Cost,
    gloo: Option<Cost>,
}

#[derive(Serialize)]
struct Report {
    processor: String,
    cores: usize,
    kernel: String,
    load: f64,
    weights: usize,
    workers: u16,
    servers: u16,
    scheme: String,
    step: Step,
    iterations: u64,
    rounds: Vec<Round>,
    /// Why the other program was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_compared: Option<String>,
}

impl Args {
    pub(crate) fn run(&self) -> Result<()> {
        let each = self.weights / self.layers as usize;
        ensure!(
            each > 0,
            "--weights {}: give {} or more, one for each layer",
            self.weights,
            self.layers
        );
        let machine = Machine::here("lo");
        let missing = self.compare.and_then(|_| dogwild_tools::gloo::missing());
        let mut rounds = Vec::new();
        for _ in 0..self.rounds {
            let ours = cluster::run(self)?;
            let plain = plain::run(self, ours.sent_bytes)?;
            let gloo = match (self.compare, &missing) {
                (Some(Peer::Gloo), None) => Some(gloo::run(self)?),
                _ => None,
            };
            rounds.push(Round { ours, plain, gloo });
        }
        let report = Report {
            processor: machine.processor,
            cores: machine.cores,
            kernel: machine.kernel,
            load: machine.load,
            weights: self.weights,
            workers: self.workers,
            servers: self.servers,
            scheme: self.scheme.to_string(),
            step: self.step,
            iterations: self.iterations,
            rounds,
            not_compared: missing,
        };
        match self.json {
            true => dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?),
            false => dogwild_lab::say!("{}", report.table()),
        }
        Ok(())
    }
}

/// What one of the programs took in a round, if it was measured.
type Way = fn(&Round) -> Option<Cost>;
type Number = fn(&Cost) -> f64;

impl Report {
    fn table(&self) -> String {
        let ways: [(&str, Way); 3] = [
            ("dogwild", |round| Some(round.ours)),
            ("plain TCP", |round| Some(round.plain)),
            ("Gloo", |round| round.gloo),
        ];
        let measured = |way: Way| {
            let costs: Vec<Cost> = self.rounds.iter().filter_map(way).collect();
            (!costs.is_empty()).then_some(costs)
        };
        let ways = ways.map(|(name, way)| Some((name, measured(way)?)));
        let ways: Vec<_> = ways.into_iter().flatten().collect();
        let title = "of an iteration".to_owned();
        let names = ways.iter().map(|(name, _)| (*name).to_owned());
        let mut table = Columns::boxed(std::iter::once(title).chain(names));
        let numbers: [(&str, Number, usize); 5] = [
            ("ms", |cost| cost.seconds * 1e3, 0),
            ("ms of CPU", |cost| cost.cpu_s * 1e3, 0),
            ("MB sent", |cost| cost.sent_bytes / 1e6, 0),
            (
                "s of CPU per GB",
                |cost| cost.cpu_s / cost.sent_bytes * 1e9,
                2,
            ),
            ("page faults", |cost| cost.page_faults, 0),
        ];
        for (what, number, digits) in numbers {
            let spread = |costs: &[Cost]| {
                let text = |value: f64| format!("{value:.digits$}");
                let spread = Spread::of(costs.iter().map(number))?;
                let [lowest, highest] = [spread.lowest, spread.highest].map(text);
                Some(format!("{} ({lowest} to {highest})", text(spread.median)))
            };
            let columns = ways
                .iter()
                .map(|(_, costs)| spread(costs).unwrap_or_default());
            table.row(std::iter::once(what.to_owned()).chain(columns));
        }
        let missing = self.not_compared.as_ref();
        let missing = missing.map_or(String::new(), |why| format!("\n{why}"));
        format!(
            "{:.1} M weights, {} workers, {} servers, {}: median (lowest to highest) of {} rounds\n{table}{missing}",
            self.weights as f64 / 1e6,
            self.workers,
            self.servers,
            self.scheme,
            self.rounds.len()
        )
    }
}
