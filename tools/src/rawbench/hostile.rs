//! `dogwild-rawbench hostile`: what a sealed stream keeps of its rate while another host sends
//! frames without the key, and whether any of them changes a weight.
//!
//! Streamers and attacker are processes of their own, in the hosts of a lab or on loopback. Rates
//! are taken before the attack, during it and after it. Fails if a weight changed, or if a streamer
//! ended.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dogwild::cli::args::{rate, seconds};
use dogwild::watch::StreamMeter;
use dogwild::watch::screen::Columns;
use dogwild::weights::SharedWeights;
use dogwild_lab::{Lab, Spec};
use dogwild_net::seal::KEY_BYTES;
use dogwild_tools::scratch::Scratch;
use serde::Serialize;

use super::fleet::{Fleet, FleetArgs, Reading};

mod attacker;

pub(crate) use attacker::AttackerArgs;

/// Between two looks at whether the attack is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Why a frame was refused, by the seal.
const REFUSALS: [(&str, StreamMeter); 4] = [
    ("bad tag", StreamMeter::SealBadTag),
    ("replayed", StreamMeter::SealReplayed),
    ("too short", StreamMeter::SealTruncated),
    ("too many links", StreamMeter::SealTooManyLinks),
];

/// Arguments of `dogwild-rawbench hostile`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Frames that the attacker sends; each reaches all nodes, as far as they have room
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    frames: u64,
    /// Frames per second that the attacker sends at most; default: what its link takes
    #[arg(long, value_name = "N")]
    attack_rate: Option<u64>,
    /// Bytes of a forged frame; 46 is the shortest that is not refused by its length
    #[arg(long, value_name = "BYTES", default_value_t = 46, value_parser = clap::value_parser!(u16).range(1..=1400))]
    forged_bytes: u16,
    /// Bytes per second that a node sends at most, or max
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", default_value = "max", value_parser = checked_rate)]
    rate: String,
    /// Seconds of each measurement without an attack
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// A rate that streamers will understand, as it was written.
fn checked_rate(text: &str) -> Result<String, String> {
    rate(text).map(|_| text.to_owned())
}

/// What streamers did in a time, all of them together.
#[derive(Debug, Serialize)]
struct Phase {
    seconds: f64,
    /// Positions that slaves took: what the stream is for.
    positions_taken_per_s: f64,
    cpu_share: f64,
    kernel_drops: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    transport: &'static str,
    nodes: u16,
    weights: u64,
    mtu: u32,
    rate: String,
    attack_rate: Option<u64>,
    attack: attacker::Outcome,
    before: Phase,
    during: Phase,
    after: Phase,
    /// Positions taken during the attack, compared with the mean of before and after.
    goodput_share: f64,
    /// The same for each second of the nodes' CPU: the attacker may have taken what they lack.
    goodput_share_per_cpu: f64,
    /// Frames that streamers looked at and refused by their seal, all nodes together, by reason.
    refused: Vec<(&'static str, u64)>,
    refused_total: u64,
    /// Frames that passed the seal and that the stream refused.
    stream_drops: Vec<(&'static str, u64)>,
    weights_changed: u64,
}

impl Args {
    pub(crate) fn run(mut self) -> Result<()> {
        let report = self.measure()?;
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            dogwild_lab::say!("{}", report.table());
        }
        ensure!(
            report.weights_changed == 0,
            "{} weights changed under the attack: capture it (--capture of the streamers) and report it as SECURITY.md says",
            report.weights_changed
        );
        ensure!(
            report.refused_total > 0,
            "no frame of the attacker reached a streamer: look at the interface (--iface), or add --lab"
        );
        Ok(())
    }

    fn measure(&mut self) -> Result<Report> {
        let scratch = Scratch::new("dogwild-rawbench")?;
        if self.fleet.key_file.is_none() {
            self.fleet.key_file = Some(new_key(&scratch)?);
        }
        let stream_args = ["--rate".to_owned(), self.rate.clone()];
        let lab = self.make_lab()?;
        let mut fleet = Fleet::start(&self.fleet, lab, &stream_args)?;
        spread_weights(&mut fleet)?;
        let bits: Vec<Vec<u32>> = fleet.buffers.iter().map(bits).collect();

        let quiet = Duration::from_secs_f64(self.seconds);
        let first = fleet.read();
        std::thread::sleep(quiet);
        let begun = fleet.read();
        let (attack, during) = self.attack(&mut fleet)?;
        let ended = fleet.read();
        std::thread::sleep(quiet);
        let last = fleet.read();
        fleet.check()?;
        let now = fleet.buffers.iter().flat_map(bits_of);
        let weights_changed = bits.iter().flatten().zip(now).filter(|(a, b)| **a != *b);
        let weights_changed = weights_changed.count() as u64;
        fleet.stop()?;
        let whole = fleet.read();

        let (before, after) = (Phase::of(&first, &begun), Phase::of(&ended, &last));
        let share =
            |of: fn(&Phase) -> f64| of(&during) / ((of(&before) + of(&after)) / 2.0).max(1e-9);
        let sum = |meter| whole.iter().map(|one| one.now(meter)).sum::<u64>();
        let refused = REFUSALS.map(|(name, meter)| (name, sum(meter))).to_vec();
        Ok(Report {
            transport: self.fleet.transport.name(),
            nodes: self.fleet.nodes,
            weights: self.fleet.weights,
            mtu: self.fleet.mtu,
            rate: self.rate.clone(),
            attack_rate: self.attack_rate,
            attack,
            goodput_share: share(|phase| phase.positions_taken_per_s),
            goodput_share_per_cpu: share(Phase::taken_per_cpu_s),
            before,
            during,
            after,
            refused_total: refused.iter().map(|(_, n)| n).sum(),
            refused,
            stream_drops: whole.iter().flat_map(Reading::drops).collect(),
            weights_changed,
        })
    }

    /// A host for each node and one for the attacker, if there is a lab.
    fn make_lab(&self) -> Result<Option<Lab>> {
        if !self.fleet.lab {
            return self.fleet.make_lab();
        }
        let spec = Spec {
            mtu: self.fleet.mtu,
            ..Spec::of(usize::from(self.fleet.nodes) + 1)
        };
        Ok(Some(Lab::up(&spec)?))
    }

    /// Lets the attacker send all its frames; what streamers did meanwhile.
    fn attack(&self, fleet: &mut Fleet) -> Result<(attacker::Outcome, Phase)> {
        let mut command = self.fleet.command(fleet.lab.as_ref(), self.fleet.nodes)?;
        command.args(["component", "attacker"]);
        command.args(["--transport", self.fleet.transport.name()]);
        command.args(["--mtu", &self.fleet.mtu.to_string()]);
        command.args(["--session", &fleet.session.to_string()]);
        command.args(["--frames", &self.frames.to_string()]);
        command.args(["--forged-bytes", &self.forged_bytes.to_string()]);
        if let Some(rate) = self.attack_rate {
            command.args(["--attack-rate", &rate.to_string()]);
        }
        if let Some(iface) = self.fleet.iface(self.fleet.nodes) {
            command.args(["--iface", &iface]);
        }
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().context("cannot start the attacker")?;
        let before = fleet.read();
        let mut said = Instant::now();
        while child.try_wait()?.is_none() {
            fleet.check()?;
            if said.elapsed() > Duration::from_secs(60) {
                said = Instant::now();
                let refused = fleet.read().iter().map(refusals).sum::<u64>();
                dogwild_lab::progress!("the attack goes on: {refused} frames refused so far");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let during = Phase::of(&before, &fleet.read());
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let attack = serde_json::from_str(&text)
            .with_context(|| format!("the attacker ended with {} and `{text}`", output.status))?;
        Ok((attack, during))
    }
}

fn refusals(reading: &Reading) -> u64 {
    REFUSALS.iter().map(|(_, meter)| reading.now(*meter)).sum()
}

/// A key in a file of its own.
fn new_key(scratch: &Scratch) -> Result<std::path::PathBuf> {
    let path = scratch.file("key");
    let key: [u8; KEY_BYTES] = std::array::from_fn(|_| rand::random());
    std::fs::write(&path, key)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

/// Gives each weight a value of its own, so that one that changes is seen, and waits until all
/// nodes have them.
fn spread_weights(fleet: &mut Fleet) -> Result<()> {
    let view = fleet.buffers[0].view();
    for i in 0..fleet.buffers[0].used() {
        view.racy_add(i, 1.0 + (i % 65_521) as f32);
    }
    while !fleet.identical() {
        fleet.check()?;
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn bits_of(buffer: &SharedWeights) -> impl Iterator<Item = u32> {
    let view = buffer.view();
    (0..buffer.used()).map(move |i| view.load(i).to_bits())
}

fn bits(buffer: &SharedWeights) -> Vec<u32> {
    bits_of(buffer).collect()
}

impl Phase {
    fn of(before: &[Reading], after: &[Reading]) -> Self {
        let pairs = || after.iter().zip(before);
        let per_s = |meter| pairs().map(|(a, b)| a.per_s(b, meter)).sum::<f64>();
        Self {
            seconds: (after[0].at - before[0].at).as_secs_f64(),
            positions_taken_per_s: per_s(StreamMeter::PositionsTaken),
            cpu_share: per_s(StreamMeter::CpuNs) / 1e9,
            kernel_drops: pairs()
                .map(|(a, b)| a.since(b, StreamMeter::KernelDrops))
                .sum(),
        }
    }

    fn taken_per_cpu_s(&self) -> f64 {
        self.positions_taken_per_s / self.cpu_share.max(1e-9)
    }
}

impl Report {
    fn table(&self) -> String {
        let title = format!(
            "{} sealed nodes, {} weights,\n{} at MTU {}, rate {}",
            self.nodes, self.weights, self.transport, self.mtu, self.rate
        );
        let mut table = Columns::boxed([title, "all nodes".to_owned()]);
        let mut row = |name: &str, value: String| {
            table.row([name.to_owned(), value]);
        };
        let attack = &self.attack;
        row("hostile frames sent", attack.sent.to_string());
        row(
            "hostile frames/s; attacker's CPU",
            format!(
                "{:.0}; {:.0} %",
                attack.sent as f64 / attack.seconds,
                attack.cpu_share * 100.0
            ),
        );
        row("refused by their seal", self.refused_total.to_string());
        for (reason, count) in &self.refused {
            row(&format!("  {reason}"), count.to_string());
        }
        for (reason, count) in &self.stream_drops {
            row(&format!("  of the stream: {reason}"), count.to_string());
        }
        for (name, phase) in [
            ("before", &self.before),
            ("during", &self.during),
            ("after", &self.after),
        ] {
            row(
                &format!("{name}: positions taken/s; CPU; kernel drops"),
                format!(
                    "{:.0}; {:.0} %; {}",
                    phase.positions_taken_per_s,
                    phase.cpu_share * 100.0,
                    phase.kernel_drops
                ),
            );
        }
        row(
            "goodput under attack; for each second of CPU",
            format!(
                "{:.1} %; {:.1} %",
                self.goodput_share * 100.0,
                self.goodput_share_per_cpu * 100.0
            ),
        );
        row("weights changed", self.weights_changed.to_string());
        table.to_string()
    }
}
