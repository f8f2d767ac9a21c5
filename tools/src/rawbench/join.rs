//! `dogwild-rawbench join`: how soon a node that joins is ready, as a ratio to one transfer of the
//! same buffer by the same streams, right before it.
//!
//! One transfer is the time in which the nodes that are there send each position once. So it has
//! the rate that the stream finds on that link, its losses, and what deltas take of it. Each node
//! joins under a number of its own, on a new buffer, and leaves before the next one comes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dogwild::cli::args::{seconds, share};
use dogwild::watch::StreamMeter;
use dogwild::watch::screen::Columns;
use dogwild_lab::{Lab, Spec};
use serde::Serialize;

use super::fleet::{Fleet, FleetArgs, Reading};
use super::rounds::Spread;

/// Time between two looks whether the node is ready.
const LOOK: Duration = Duration::from_millis(1);

/// Arguments of `dogwild-rawbench join`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Rate of each link, in tc's words, as 100mbit: nodes are in a lab [default: no limit]
    #[arg(long, value_name = "RATE")]
    link: Option<String>,
    /// Bytes that wait at a link with a rate before frames are dropped
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10)]
    queue: u32,
    /// Share of the frames that get lost in a lab, as 0.01 or 1%
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    loss: f64,
    /// Seconds over which the transfer is measured, before each join
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// Nodes that join, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=13))]
    joins: u16,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    transport: String,
    nodes: u16,
    weights: u64,
    buffer_bytes: u64,
    mtu: u32,
    link: Option<String>,
    loss: f64,
    joins: Vec<Join>,
    /// Of all joins.
    ratio: Option<Spread>,
}

/// One node that joined.
#[derive(Debug, Serialize)]
struct Join {
    node: u16,
    /// The nodes that are there send each position once in this time, s.
    transfer_s: f64,
    /// From the beginning of its process until its files are there.
    files_s: f64,
    /// From then on until it is ready.
    taking_s: f64,
    /// Both, and as a ratio to the transfer; without the files too.
    ready_s: f64,
    ratio: f64,
    taking_ratio: f64,
    chunks: u64,
    /// Positions that came, and pieces that were asked for, until it was ready.
    positions_taken: u64,
    restores_taken: u64,
    kernel_drops: u64,
}

impl Args {
    pub(crate) fn run(mut self) -> Result<()> {
        self.fleet.lab |= self.link.is_some() || self.loss > 0.0;
        let report = self.measure()?;
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            dogwild_lab::say!("{}", report.table());
        }
        Ok(())
    }

    /// Hosts for all nodes, those that join too.
    fn make_lab(&self) -> Result<Option<Lab>> {
        if !self.fleet.lab {
            return self.fleet.make_lab();
        }
        let spec = Spec {
            mtu: self.fleet.mtu,
            rate: self.link.clone(),
            queue_bytes: Some(self.queue),
            loss: (self.loss > 0.0).then_some(self.loss),
            ..Spec::of(usize::from(self.fleet.nodes + self.joins))
        };
        Ok(Some(Lab::up(&spec)?))
    }

    fn measure(&self) -> Result<Report> {
        let places = [
            "--places".to_owned(),
            (self.fleet.nodes + self.joins).max(16).to_string(),
        ];
        let mut fleet = Fleet::start(&self.fleet, self.make_lab()?, &places)?;
        let mut joins = Vec::new();
        for node in self.fleet.nodes..self.fleet.nodes + self.joins {
            joins.push(self.join(&mut fleet, node, &places)?);
        }
        fleet.stop()?;
        Ok(Report {
            transport: self.fleet.transport.name().into(),
            nodes: self.fleet.nodes,
            weights: self.fleet.weights,
            buffer_bytes: 4 * self.fleet.weights,
            mtu: self.fleet.mtu,
            link: self.link.clone(),
            loss: self.loss,
            ratio: Spread::of(joins.iter().map(|join| join.ratio)),
            joins,
        })
    }

    fn join(&self, fleet: &mut Fleet, node: u16, args: &[String]) -> Result<Join> {
        // What the node before has left, and what it took of their windows, goes back to them.
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let before = fleet.read();
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        let transfer_s = transfer_s(fleet, &before, &fleet.read());
        // Its buffer is made by `init`, in a job: that is not a part of joining.
        fleet.make_buffer(node)?;
        let (began, began_ns) = (Instant::now(), unix_ns());
        fleet.join(node, args)?;
        while !fleet.joined() {
            fleet.check()?;
            std::thread::sleep(LOOK);
        }
        let ready_s = began.elapsed().as_secs_f64();
        let files_ns = fleet.opened_unix_ns().saturating_sub(began_ns);
        let files_s = files_ns as f64 / 1e9;
        let reading = fleet.read().pop().context("the node that joined")?;
        let chunk_weights = reading.now(StreamMeter::ChunkWeights).max(1);
        fleet.leave()?;
        Ok(Join {
            node,
            transfer_s,
            files_s,
            taking_s: ready_s - files_s,
            ready_s,
            ratio: ready_s / transfer_s,
            taking_ratio: (ready_s - files_s) / transfer_s,
            chunks: self.fleet.weights.div_ceil(chunk_weights),
            positions_taken: reading.now(StreamMeter::PositionsTaken),
            restores_taken: reading.now(StreamMeter::RestoresTaken),
            kernel_drops: reading.now(StreamMeter::KernelDrops),
        })
    }
}

/// Time in which each of the nodes sends the positions of all its chunks once: the longest.
fn transfer_s(fleet: &Fleet, before: &[Reading], after: &[Reading]) -> f64 {
    let of =
        |((shared, before), after): ((&dogwild::weights::SharedWeights, &Reading), &Reading)| {
            let runs = shared.globals().own_ranges();
            let own: usize = runs.iter().map(ExactSizeIterator::len).sum();
            let chunks = own as f64 / after.now(StreamMeter::ChunkWeights).max(1) as f64;
            chunks / after.per_s(before, StreamMeter::PositionsSent)
        };
    let all = fleet.buffers.iter().zip(before).zip(after).map(of);
    all.fold(0.0, f64::max)
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

impl Report {
    fn table(&self) -> String {
        let link = self.link.as_deref().unwrap_or("no limit");
        let title = format!(
            "{:.1} MB over {}, {} nodes, {link}",
            self.buffer_bytes as f64 / 1e6,
            self.transport,
            self.nodes
        );
        let mut table = Columns::boxed([
            title.as_str(),
            "transfer, s",
            "files, s",
            "taking, s",
            "ready, s",
            "ratio",
            "chunks",
            "positions",
            "asked for",
            "dropped",
        ]);
        for join in &self.joins {
            table.row([
                format!("node {} joins", join.node),
                format!("{:.3}", join.transfer_s),
                format!("{:.3}", join.files_s),
                format!("{:.3}", join.taking_s),
                format!("{:.3}", join.ready_s),
                format!("{:.2}", join.ratio),
                join.chunks.to_string(),
                join.positions_taken.to_string(),
                join.restores_taken.to_string(),
                join.kernel_drops.to_string(),
            ]);
        }
        table.to_string()
    }
}
