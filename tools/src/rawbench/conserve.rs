//! `dogwild-rawbench conserve`: is anything lost or doubled between what one node adds to its
//! weights and what arrives everywhere?
//!
//! The last node adds 1.0 to all its weights, again and again, at full speed, while all nodes
//! stream under the given faults. Then it stops; once every replica is equal, the sum of the
//! weights is held against what was added. Three runs: racy writes without faults (what racing
//! writes alone lose), racy writes with faults, atomic writes with faults (what the wire loses).
//!
//! What is conserved: in a sum, what was added; in a mean, what was added times the node's portion.

mod settle;
mod verdict;

use std::ops::Range;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dogwild::cli::args::{seconds, share};
use dogwild::watch::StreamMeter;
use dogwild::watch::screen::{self, Columns};
use dogwild::weights::{Expect, SharedWeights, kernels};
use dogwild_lab::process;
use serde::Serialize;

use super::fleet::{Fleet, FleetArgs};

/// Arguments of `dogwild-rawbench conserve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Share of frames to drop at each receiver, as 0.1 or 10%
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "10%", value_parser = checked_share)]
    loss: String,
    /// Share of frames to deliver twice
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "1%", value_parser = checked_share)]
    duplicate: String,
    /// Share of frames to deliver late
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "1%", value_parser = checked_share)]
    reorder: String,
    /// What becomes of lost deltas: exactly-once or fire-and-forget
    #[arg(long, default_value = "exactly-once", value_parser = ["exactly-once", "fire-and-forget"])]
    deltas: String,
    /// How deltas are merged; mean: what is added counts times the portion of the node, 1 / nodes
    #[arg(long, default_value = "sum", value_parser = ["sum", "mean"])]
    merge: String,
    /// Seconds of adding in each run
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// Times that the adding node's streamer is killed (SIGKILL) and started again in each run
    #[arg(long, value_name = "N", default_value_t = 0)]
    kills: u32,
    /// Delivery is waited for as long as replicas get nearer; given up after so many seconds in
    /// which they do not
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    settle: f64,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// A share that streamers will understand, as it was written.
fn checked_share(text: &str) -> Result<String, String> {
    share(text).map(|_| text.to_owned())
}

/// Arguments of the hidden component that adds.
#[derive(Debug, clap::Args)]
pub(crate) struct AdderArgs {
    #[arg(long)]
    buffer: std::path::PathBuf,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    atomic: bool,
    /// Add only the node's portion to what it masters, as solvers do
    #[arg(long)]
    mean: bool,
}

/// One run.
#[derive(Debug, Serialize)]
struct Outcome {
    run: &'static str,
    /// What was added, summed over all weights; in a mean times the portion of the node that added.
    added: f64,
    /// Sum of the weights once all replicas were equal (of node 0 if they never were).
    arrived: f64,
    /// Share of what was added that is missing (negative: doubled).
    missing_share: f64,
    replicas_identical: bool,
    /// What was still missing where, if they are not.
    lags: Option<String>,
    settle_s: f64,
    passes: u64,
    deltas_sent: u64,
    deltas_repeated: u64,
    dropped_on_purpose: u64,
    doubled_on_purpose: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    nodes: u16,
    weights: u64,
    mtu: u32,
    transport: &'static str,
    loss: String,
    duplicate: String,
    reorder: String,
    deltas: String,
    merge: String,
    kills_per_run: u32,
    runs: Vec<Outcome>,
    /// What it means, in words.
    verdict: String,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let nodes = self.fleet.nodes;
        if self.merge == "mean" && !nodes.is_power_of_two() {
            bail!(
                "--merge mean counts exactly with 2, 4, 8 ... nodes only: a portion of 1/{nodes} is \
                 rounded; choose another --nodes, or --merge sum"
            );
        }
        let faults = [
            "--loss",
            &self.loss,
            "--duplicate",
            &self.duplicate,
            "--reorder",
            &self.reorder,
        ];
        let mut report = Report {
            nodes: self.fleet.nodes,
            weights: self.fleet.weights,
            mtu: self.fleet.mtu,
            transport: self.fleet.transport.name(),
            loss: self.loss.clone(),
            duplicate: self.duplicate.clone(),
            reorder: self.reorder.clone(),
            deltas: self.deltas.clone(),
            merge: self.merge.clone(),
            kills_per_run: self.kills,
            runs: vec![
                self.one("racing writes, no faults", &[], false)?,
                self.one("racing writes, faults", &faults, false)?,
                self.one("atomic writes, faults", &faults, true)?,
            ],
            verdict: String::new(),
        };
        let verdict = verdict::of(&report);
        report.verdict = verdict.clone().unwrap_or_else(|failed| failed);
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            let verdict = screen::wrap(&report.verdict, screen::width());
            dogwild_lab::say!("{}\n{verdict}", report.table());
        }
        match verdict {
            Ok(_) => Ok(()),
            Err(failed) => bail!("{failed}"),
        }
    }

    fn one(&self, run: &'static str, faults: &[&str], atomic: bool) -> Result<Outcome> {
        let mut stream_args: Vec<String> = faults.iter().map(|arg| (*arg).to_owned()).collect();
        stream_args.extend(["--deltas", &self.deltas, "--merge", &self.merge].map(str::to_owned));
        stream_args.extend(["--rate", "max"].map(str::to_owned));
        if atomic {
            stream_args.push("--atomic".into());
        }
        let mut fleet = Fleet::start(&self.fleet, self.fleet.make_lab()?, &stream_args)?;
        let passes = self.add(&mut fleet, atomic, &stream_args)?;
        let start = Instant::now();
        let lags = settle::wait(&mut fleet, Duration::from_secs_f64(self.settle))?;
        let settle_s = start.elapsed().as_secs_f64();
        if lags.is_none() {
            // Equal once is not enough: what is still on the way must not move them apart again.
            std::thread::sleep(Duration::from_millis(300));
        }
        let shared = &fleet.buffers[0];
        let arrived: f64 = (0..shared.used())
            .map(|i| f64::from(shared.view().load(i)))
            .sum();
        let portion = match self.merge.as_str() {
            "mean" => 1.0 / f64::from(self.fleet.nodes),
            _ => 1.0,
        };
        let added = passes as f64 * shared.used() as f64 * portion;
        let readings = fleet.read();
        let sum = |meter: StreamMeter| readings.iter().map(|reading| reading.now(meter)).sum();
        Ok(Outcome {
            run,
            added,
            arrived,
            missing_share: 1.0 - arrived / added,
            replicas_identical: fleet.identical(),
            lags,
            settle_s,
            passes,
            deltas_sent: sum(StreamMeter::DeltasSent),
            deltas_repeated: sum(StreamMeter::DeltasRepeated),
            dropped_on_purpose: sum(StreamMeter::FaultDropped),
            doubled_on_purpose: sum(StreamMeter::FaultDuplicated),
        })
    }

    /// Runs the adder on the last node; meanwhile kills that node's streamer as often as asked.
    ///
    /// The adder stands still from just before a kill until the next streamer has finished what was
    /// interrupted. A weight that is killed at the very exchange and is then moved on by others
    /// does not show whether it was written (`weights::Journal::recover`): what is measured here is
    /// the protocol, which has to be exact.
    fn add(&self, fleet: &mut Fleet, atomic: bool, stream_args: &[String]) -> Result<u64> {
        let node = self.fleet.nodes - 1;
        let mut command = self.fleet.command(fleet.lab.as_ref(), node)?;
        command
            .args(["component", "adder", "--buffer"])
            .arg(fleet.buffers[usize::from(node)].path());
        command.args(["--seconds", &self.seconds.to_string()]);
        if atomic {
            command.arg("--atomic");
        }
        if self.merge == "mean" {
            command.arg("--mean");
        }
        let adder = command
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the adder")?;
        for _ in 0..self.kills {
            std::thread::sleep(Duration::from_secs_f64(
                self.seconds / f64::from(self.kills + 1),
            ));
            process::pause(adder.id());
            let restarted = fleet.kill_and_restart(node, stream_args);
            process::resume(adder.id());
            restarted?;
        }
        let output = adder.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim()
            .parse()
            .with_context(|| format!("the adder said `{text}`"))
    }
}

impl AdderArgs {
    /// Adds to every weight, pass after pass; prints how many passes.
    pub(crate) fn run(self) -> Result<()> {
        let shared = SharedWeights::open(&self.buffer, &Expect::default())?;
        let parts = self.parts(&shared);
        let start = Instant::now();
        let mut passes = 0u64;
        while start.elapsed().as_secs_f64() < self.seconds {
            for (range, step) in &parts {
                let w = shared.view().slice(range.start, range.len());
                if self.atomic {
                    kernels::atomic_add_scalar(w, *step);
                } else {
                    kernels::racy_add_scalar(w, *step);
                }
            }
            passes += 1;
            // f32 counts exactly up to 2^24.
            if passes == 1 << 24 {
                break;
            }
        }
        dogwild_lab::say!("{passes}");
        Ok(())
    }

    /// What is added to which weights: 1.0, but in a mean only the portion to what the node
    /// masters. There weights are the positions themselves; elsewhere the streamer multiplies what
    /// it sends.
    fn parts(&self, shared: &SharedWeights) -> Vec<(Range<usize>, f32)> {
        let (globals, used) = (shared.globals(), shared.used());
        let portion = if self.mean { globals.portion() } else { 1.0 };
        let (mut parts, mut next) = (Vec::new(), 0);
        for own in globals.own_ranges() {
            let (begin, end) = (own.start.clamp(next, used), own.end.clamp(next, used));
            parts.extend([(next..begin, 1.0), (begin..end, portion)]);
            next = end;
        }
        parts.push((next..used, 1.0));
        parts
    }
}

impl Report {
    fn table(&self) -> String {
        let title = format!(
            "{} nodes, {} weights,\n{} at MTU {},\n{}, {};\nfaults: {} loss,\n{} duplicated, {} reordered",
            self.nodes,
            self.weights,
            self.transport,
            self.mtu,
            self.deltas,
            self.merge,
            self.loss,
            self.duplicate,
            self.reorder
        );
        let names = self.runs.iter().map(|run| run.run.to_owned());
        let mut table = Columns::boxed(std::iter::once(title).chain(names));
        let mut row = |name: &str, value: &dyn Fn(&Outcome) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.runs.iter().map(value)));
        };
        row("added", &|r| format!("{:.0}", r.added));
        row("arrived", &|r| format!("{:.0}", r.arrived));
        row("missing", &|r| format!("{:.4} %", r.missing_share * 100.0));
        row("replicas identical", &|r| {
            if r.replicas_identical {
                "yes".into()
            } else {
                "NO".into()
            }
        });
        row("time to become so, s", &|r| format!("{:.2}", r.settle_s));
        row("deltas sent (again)", &|r| {
            format!("{} ({})", r.deltas_sent, r.deltas_repeated)
        });
        row("frames dropped, doubled on purpose", &|r| {
            format!("{}, {}", r.dropped_on_purpose, r.doubled_on_purpose)
        });
        table.to_string()
    }
}
