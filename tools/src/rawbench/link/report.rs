//! What a measurement over a link reports: where, with which settings, what came out, and what
//! peer tools do on the same link. As JSON, as tables (`tables`), as a picture
//! (`pictures`), as files of HdrHistogram (`hgrm`).

mod hgrm;
mod pictures;
mod tables;

use dogwild::watch::screen;
use serde::{Deserialize, Serialize};

use super::DriverArgs;
use super::pings::Pings;
use super::ratios::Rounds;
use super::run::Run;
use crate::compare::Comparison;
use crate::machine::Machine;

/// What came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Send(Box<Run>),
    Ping(Pings),
    Sweep(Vec<Point>),
    Latency(Box<Latency>),
}

/// One frame size of a sweep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    /// As fast as the sender can.
    pub(crate) flat_out: Run,
    /// The highest rate found without loss, if any.
    pub(crate) loss_free: Option<Run>,
    /// Offered rate and lost share of every trial on the way.
    pub(crate) trials: Vec<(f64, f64)>,
    /// Frames/s received without loss, as each search found them; 0: none.
    #[serde(default)]
    pub(crate) repeats: Vec<f64>,
}

/// Round trips while the link is loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// What 100 % is.
    pub(crate) highest_frames_per_s: f64,
    /// How that was found; none if it was given.
    pub(crate) search: Option<Point>,
    pub(crate) loads: Vec<Load>,
}

/// One load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Of the highest rate.
    pub(crate) per_cent: f64,
    /// What was sent, and the round trips in the meantime.
    pub(crate) run: Run,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) transport: String,
    /// Payload of a full frame.
    pub(crate) mtu_payload_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) spin: bool,
    /// The only core that sends.
    #[serde(default)]
    pub(crate) core: Option<usize>,
    /// Arguments of transport and faults, as given or by default.
    pub(crate) arguments: String,
}

/// The whole report: place, settings, result, and the peers' results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) lab: bool,
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) outcome: Outcome,
    #[serde(default)]
    pub(crate) comparison: Option<Comparison>,
    /// All rounds, if there were any; the outcome is that of the median one.
    #[serde(default)]
    pub(crate) rounds: Option<Rounds>,
}

impl Outcome {
    /// Takes note of what the interface had counted before and after, where it counts single
    /// frames.
    pub(crate) fn count_by_interface(&mut self, counted: Option<(u64, u64)>) {
        if let (Self::Send(run), Some((before, after))) = (self, counted) {
            let frames = after.saturating_sub(before) as f64;
            run.interface_sent_frames_per_s = Some(frames / run.seconds);
        }
    }
}

impl Report {
    pub(crate) fn new(
        args: &DriverArgs,
        payload_max: usize,
        command: &str,
        outcome: Outcome,
    ) -> Self {
        let link = &args.link;
        let arguments = [link.transport.to_args(0), link.fault.to_args(0)].concat();
        Self {
            command: command.to_owned(),
            lab: false,
            machine: Machine::here(link.iface()),
            settings: Settings {
                transport: link.transport.transport.name().to_owned(),
                mtu_payload_bytes: payload_max,
                seconds: args.seconds,
                spin: link.spin,
                core: args.core,
                arguments: arguments.join(" "),
            },
            outcome,
            comparison: None,
            rounds: None,
        }
    }

    /// What runs of `send` are put in order by.
    pub(crate) fn rate(&self) -> f64 {
        match &self.outcome {
            Outcome::Send(run) if run.alone => run.sent_by_interface(),
            Outcome::Send(run) => run.received_frames_per_s,
            Outcome::Ping(_) | Outcome::Sweep(_) | Outcome::Latency(_) => 0.0,
        }
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let machine = &self.machine;
        let speed = machine.speed_mbit_per_s;
        let text = format!(
            "{} over {} on `{}`{} (MTU {}{}{}), {} s each{}\n{}, {} cores, Linux {}, load {}\n{}\n",
            self.command,
            self.settings.transport,
            machine.iface,
            if self.lab { " of a lab" } else { "" },
            machine.mtu,
            speed.map_or(String::new(), |speed| format!(", {speed} Mb/s")),
            machine
                .driver
                .as_ref()
                .map_or(String::new(), |d| format!(", {d}")),
            self.settings.seconds,
            self.settings
                .core
                .map_or(String::new(), |core| format!(", sent from core {core}")),
            machine.processor,
            machine.cores,
            machine.kernel,
            machine.load,
            self.settings.arguments,
        );
        let mut text = screen::wrap(&text, screen::width()) + "\n";
        text += &self.outcome.table();
        if let Some(comparison) = &self.comparison {
            text += &comparison.table();
        }
        if let Some(rounds) = &self.rounds {
            text += &rounds.table();
        }
        text
    }

    /// What was measured, where and how, in one sentence.
    fn title(&self) -> String {
        let (settings, machine) = (&self.settings, &self.machine);
        format!(
            "{} over {} on `{}`{} (MTU {}), {} s each; {}, {} cores, Linux {}; {}",
            self.command,
            settings.transport,
            machine.iface,
            if self.lab { " of a lab" } else { "" },
            machine.mtu,
            settings.seconds,
            machine.processor,
            machine.cores,
            machine.kernel,
            settings.arguments,
        )
    }
}
