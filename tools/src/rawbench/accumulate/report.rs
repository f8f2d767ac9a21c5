//! What `rawbench accumulate` found, as JSON and as a table, with the paper's figures.
//!
//! Numbers and text only.

use std::time::Duration;

use clap::ValueEnum;
use dogwild::watch::screen::{self, Columns};
use serde::Serialize;

use super::{DeviceKind, OrderArg};

/// The paper's: Le Duc et al., "Involving CPUs into Multi-GPU Deep Learning", 2018, four GPUs of
/// one host.
struct Paper {
    net: &'static str,
    /// Waiting per iteration before and with its scheme, where it has figures.
    waited: Option<[Duration; 2]>,
    /// Speed-up over adding the gradients on the GPUs after the pass.
    speed_up: f64,
}

const PAPER: [Paper; 4] = [
    Paper {
        net: "alexnet",
        waited: Some([Duration::from_millis(43), Duration::from_nanos(21_800)]),
        speed_up: 1.21,
    },
    Paper {
        net: "googlenet",
        waited: None,
        speed_up: 1.04,
    },
    Paper {
        net: "vgg16",
        waited: None,
        speed_up: 1.21,
    },
    Paper {
        net: "resnet-152",
        waited: None,
        speed_up: 1.07,
    },
];

/// Weak scaling that the paper reached with all nets.
const PAPER_EFFICIENCY: f64 = 0.9;
/// With more than this share of all cores busy, copies and sums wait for cores.
pub(super) const BUSY: f64 = 0.7;

/// What was measured.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) load: f64,
    pub(super) device_kind: DeviceKind,
    pub(super) order: OrderArg,
    pub(super) iterations: u32,
    pub(super) scale: f64,
    pub(super) nets: Vec<NetReport>,
}

#[derive(Serialize)]
pub(super) struct NetReport {
    pub(super) layers_file: String,
    pub(super) layers: usize,
    /// Layers of fewer floats are given together.
    pub(super) joined_below: usize,
    /// Copies down of a device in an iteration: layers, or several in one.
    pub(super) copies: usize,
    pub(super) images: u32,
    /// Where layer times come from.
    pub(super) times_source: String,
    /// Sum of the replayed times of one iteration.
    pub(super) replayed_ms: f64,
    /// What one device needs for an iteration without giving anything.
    pub(super) alone_ms: f64,
    /// Gradients of one device and iteration; as many go down as sums go up.
    pub(super) bytes: u64,
    pub(super) runs: Vec<RunReport>,
    pub(super) paper: Option<PaperReport>,
}

#[derive(Serialize)]
pub(super) struct RunReport {
    pub(super) devices: usize,
    pub(super) overlapped: bool,
    /// After the backward pass, until all sums are on the device.
    pub(super) wait_p50_us: f64,
    pub(super) wait_p99_us: f64,
    pub(super) iteration_ms: f64,
    /// One device alone's iteration time over this one.
    pub(super) weak_scaling_efficiency: f64,
    /// Share of all cores that this program kept busy: copies and sums; replayed computing does
    /// not.
    pub(super) cores_busy: f64,
    /// Share of all cores that was busy, with whatever else runs on this machine.
    pub(super) machine_busy: f64,
    /// False if copies and sums had to wait for cores, so that efficiency says nothing about the
    /// scheme.
    pub(super) cores_allow: bool,
}

/// Four GPUs.
#[derive(Serialize)]
pub(super) struct PaperReport {
    pub(super) source: &'static str,
    pub(super) devices: usize,
    pub(super) wait_before_us: Option<f64>,
    pub(super) wait_us: Option<f64>,
    pub(super) speed_up: f64,
    pub(super) weak_scaling_efficiency_least: f64,
}

impl PaperReport {
    /// The paper's figures for a net, if it has some.
    pub(super) fn of(net: &str) -> Option<Self> {
        let paper = PAPER.iter().find(|paper| net == paper.net)?;
        let us = |which: usize| Some(paper.waited?[which].as_secs_f64() * 1e6);
        Some(Self {
            source: "Le Duc et al. 2018, four GPUs",
            devices: 4,
            wait_before_us: us(0),
            wait_us: us(1),
            speed_up: paper.speed_up,
            weak_scaling_efficiency_least: PAPER_EFFICIENCY,
        })
    }
}

impl Report {
    pub(super) fn print(&self) {
        say(&format!(
            "{}, {} cores, Linux {}, load {}; devices: {}, order: {}, {} iterations{}",
            self.processor,
            self.cores,
            self.kernel,
            self.load,
            name(self.device_kind),
            name(self.order),
            self.iterations,
            match self.scale {
                1.0 => String::new(),
                scale => format!(", weights divided by {scale}"),
            }
        ));
        let mut doubt = false;
        for net in &self.nets {
            say(&format!(
                "\n{}: {} layers in {} copies, {:.1} MB of gradients per device and iteration, {} images; replayed \
                 {:.1} ms per iteration ({}), one device alone {:.1} ms",
                net.layers_file,
                net.layers,
                net.copies,
                net.bytes as f64 / 1e6,
                net.images,
                net.replayed_ms,
                net.times_source,
                net.alone_ms
            ));
            dogwild_lab::say!("{}", net.table());
            doubt |= net.runs.iter().any(|run| !run.cores_allow);
        }
        if doubt {
            say(&format!(
                "\n* more than {} % of the {} cores were busy: copies and sums waited for cores, so waits and \
                 efficiency are the machine's and not the scheme's. End other load; use more cores, a larger --batch, or --scale",
                BUSY * 100.0,
                self.cores
            ));
        }
    }
}

/// Prints a sentence, folded to the screen.
fn say(text: &str) {
    dogwild_lab::say!("{}", screen::wrap(text, screen::width()));
}

impl NetReport {
    fn table(&self) -> Columns {
        let mut table = Columns::plain([
            "devices",
            "sums",
            "wait p50",
            "wait p99",
            "iteration",
            "weak scaling",
            "cores busy",
            "with others",
        ])
        .with_words(1..2);
        for run in &self.runs {
            table.row([
                run.devices.to_string(),
                sums(run.overlapped).into(),
                time(run.wait_p50_us),
                time(run.wait_p99_us),
                format!("{:.1} ms", run.iteration_ms),
                format!(
                    "{:.1} %{}",
                    run.weak_scaling_efficiency * 100.0,
                    if run.cores_allow { "" } else { " *" }
                ),
                format!("{:.0} %", run.cores_busy * 100.0),
                format!("{:.0} %", run.machine_busy * 100.0),
            ]);
        }
        if let Some(paper) = &self.paper {
            let said = |us: Option<f64>| us.map_or("not stated".into(), time);
            let of = |overlapped| format!("{} (paper's)", sums(overlapped));
            let none = String::new;
            table.row([
                paper.devices.to_string(),
                of(true),
                said(paper.wait_us),
                none(),
                format!("{} times faster", paper.speed_up),
                format!("over {:.0} %", paper.weak_scaling_efficiency_least * 100.0),
                none(),
                none(),
            ]);
            table.row([
                paper.devices.to_string(),
                of(false),
                said(paper.wait_before_us),
                none(),
                none(),
                none(),
                none(),
                none(),
            ]);
        }
        table
    }
}

fn sums(overlapped: bool) -> &'static str {
    if overlapped {
        "during the pass"
    } else {
        "after it"
    }
}

fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} µs"),
        us => format!("{:.2} ms", us / 1e3),
    }
}

fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().into())
}
