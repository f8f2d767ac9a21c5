//! What a measurement over a link reports: where, with which settings, what came out, and what
//! peer tools do on the same link. As JSON, as a table, as a picture.

use dogwild::watch::curve::{Axis, Curve, Panel, Series};
use dogwild::watch::screen::{self, Columns};
use serde::{Deserialize, Serialize};

use super::DriverArgs;
use super::driver::{Driver, Pings, Run};
use super::ratios::Rounds;
use crate::compare::Comparison;
use crate::machine::Machine;

/// What came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Send(Run),
    Ping(Pings),
    Sweep(Vec<Point>),
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
    pub(crate) fn new(args: &DriverArgs, driver: &Driver, command: &str, outcome: Outcome) -> Self {
        let link = &args.link;
        let arguments = [link.transport.to_args(0), link.fault.to_args(0)].concat();
        Self {
            command: command.to_owned(),
            lab: false,
            machine: Machine::here(link.iface()),
            settings: Settings {
                transport: link.transport.transport.name().to_owned(),
                mtu_payload_bytes: driver.payload_max(),
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
            Outcome::Ping(_) | Outcome::Sweep(_) => 0.0,
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
        let table = match &self.outcome {
            Outcome::Send(run) => runs([("", Some(run))]),
            Outcome::Sweep(points) => runs(points.iter().flat_map(|point| {
                [
                    ("flat out", Some(&point.flat_out)),
                    ("loss-free", point.loss_free.as_ref()),
                ]
            })),
            Outcome::Ping(pings) => ping(pings),
        };
        text += &table.to_string();
        if let Some(comparison) = &self.comparison {
            text += &comparison.table();
        }
        if let Some(rounds) = &self.rounds {
            text += &rounds.table();
        }
        text
    }

    /// As a picture.
    pub(crate) fn curve(&self) -> Curve {
        let transport = &self.settings.transport;
        let panel = |x: &str, y: &str, series| Panel {
            series,
            x_label: x.to_owned(),
            y_label: y.to_owned(),
            ..Panel::default()
        };
        let panels = match &self.outcome {
            Outcome::Send(run) => vec![panel(
                "seconds",
                "frames/s sent",
                vec![line(transport, run.parts.clone())],
            )],
            Outcome::Ping(pings) => vec![Panel {
                y_axis: Axis::Log,
                ..panel(
                    "per cent of round trips",
                    "µs at most",
                    vec![line(transport, pings.percentiles.clone())],
                )
            }],
            Outcome::Sweep(points) => {
                let frames = sweep(points, |run| run.received_frames_per_s);
                let bits = sweep(points, |run| run.received_bits_per_s / 1e9);
                let by_size = |y, series| Panel {
                    x_axis: Axis::Log,
                    ..panel("payload, bytes", y, series)
                };
                vec![
                    by_size("frames/s received", frames),
                    by_size("Gb/s received", bits),
                ]
            }
        };
        Curve {
            title: self.title(),
            panels,
        }
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

/// The two lines of a sweep.
fn sweep(points: &[Point], y: impl Fn(&Run) -> f64) -> Vec<Series> {
    let of = |run: &Run| (run.frame_bytes as f64, y(run));
    let flat = points.iter().map(|point| of(&point.flat_out)).collect();
    let free = points.iter().filter_map(|point| point.loss_free.as_ref());
    vec![
        line("flat out", flat),
        line("loss-free", free.map(of).collect()),
    ]
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
    }
}

fn runs<'a>(rows: impl IntoIterator<Item = (&'a str, Option<&'a Run>)>) -> Columns {
    let mut table = Columns::boxed([
        "",
        "payload",
        "sent/s",
        "received/s",
        "Gb/s",
        "lost",
        "ns/frame\nsend, recv",
    ]);
    for (name, run) in rows {
        let Some(run) = run else {
            table.row([name, "none found"]);
            continue;
        };
        let there = |text: String| if run.alone { "-".to_owned() } else { text };
        table.row([
            name.to_owned(),
            run.frame_bytes.to_string(),
            format!("{:.0}", run.sent_frames_per_s),
            there(format!("{:.0}", run.received_frames_per_s)),
            there(format!("{:.3}", run.received_bits_per_s / 1e9)),
            there(format!("{:.3} %", run.lost_share * 100.0)),
            format!(
                "{:.0}, {}",
                run.send_cpu_ns_per_frame,
                there(format!("{:.0}", run.receive_cpu_ns_per_frame))
            ),
        ]);
    }
    table
}

fn ping(pings: &Pings) -> Columns {
    let mut table = Columns::boxed([
        "payload",
        "sent",
        "lost",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "mean µs",
    ]);
    let us = |us: f64| format!("{us:.1}");
    table.row([
        pings.frame_bytes.to_string(),
        pings.sent.to_string(),
        (pings.sent - pings.received).to_string(),
        us(pings.p50_us),
        us(pings.p99_us),
        us(pings.p999_us),
        us(pings.max_us),
        us(pings.mean_us),
    ]);
    table
}
