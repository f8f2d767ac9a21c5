//! What `send`, `recv`, `ping`, `sweep` and `latency` share: their arguments, where their ends are,
//! and what they report.
//!
//! By hand, `recv` runs on one host and the others on another, each with its own `--iface`. With
//! `--lab` this program makes the hosts, starts `recv` in all but one and itself in that, and takes
//! its report over (`hosts`). Modules:
//!
//! - `packet`, `plan`: what a frame says, and what is to be sent;
//! - `pour`, `tally`: sending by a plan and counting what arrives, at both ends;
//! - `driver`, `sending`, `counts`, `pings`, `streams`: the end that drives;
//! - `responder`: the other one;
//! - `search`: the highest rate without loss;
//! - `ratios`: ours over its peers, once or in rounds;
//! - `run`, `interval`, `report`: what comes out.

mod counts;
mod driver;
mod hosts;
pub(crate) mod interval;
pub(crate) mod packet;
pub(crate) mod pings;
pub(crate) mod plan;
mod pour;
mod ratios;
pub(crate) mod report;
pub(crate) mod responder;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod sending;
pub(crate) mod streams;
mod tally;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::Result;
use clap::builder::RangedI64ValueParser;
use dogwild::cli::args::{FaultArgs, TransportArgs, seconds, session};
use dogwild::node::{drop_privileges_after_opening, drop_privileges_before_opening, open_link};
use dogwild_lab::Lab;
use dogwild_net::Link;

use super::compare::Places;
use super::compare::names::Name;
use interval::Event;
use report::{Outcome, Report};
use streams::{Streams, Team};

/// Parallel streams at most: each has a thread at both ends, and a session of its own.
const STREAMS_MAX: i64 = 64;
/// Seeds of the faults of two streams lie so far apart.
const SEEDS_OF_A_STREAM: u64 = 1 << 16;

/// What `-P` takes.
pub(crate) fn parallel() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=STREAMS_MAX)
}

/// Arguments of both ends.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LinkArgs {
    #[command(flatten)]
    pub(crate) transport: TransportArgs,
    #[command(flatten)]
    pub(crate) fault: FaultArgs,
    /// Name of this measurement; the same at both ends, another for each at the same time
    #[arg(long, value_name = "NAME", default_value = "rawbench")]
    pub(crate) session: String,
    /// Poll without sleeping (one core for each end)
    #[arg(long)]
    pub(crate) spin: bool,
    /// Machine-readable output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of the end that drives.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DriverArgs {
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Make the hosts here and start all ends (no root needed where user namespaces are allowed)
    #[arg(long, conflicts_with = "iface")]
    pub(crate) lab: bool,
    /// Limit the lab's link, in tc's words (100mbit): a token bucket in each direction
    #[arg(long, value_name = "RATE", requires = "lab")]
    link_rate: Option<String>,
    /// Bytes that wait at --link-rate before frames are dropped [default: 262144]
    #[arg(long, value_name = "BYTES", requires = "link_rate")]
    queue: Option<u32>,
    /// The lab's hosts receive on all cores (receive packet steering), not on the one that sends
    #[arg(long, requires = "lab")]
    pub(crate) steer_receive: bool,
    /// Send from this core only, counted from 0, ours and what --compare runs. Receiving ends run
    /// where they may (testpmd always sends from one core, 1 if not told; trafgen always from core
    /// 0)
    #[arg(long, value_name = "N", requires = "lab")]
    pub(crate) core: Option<usize>,
    /// Seconds of each measurement
    #[arg(short = 't', long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Also draw the result (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Also measure on the same link: peer tools that are installed, and (`send --lab` with
    /// --key-file) ours without the key; names with commas after `=` [default: all]
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all"
    )]
    pub(crate) compare: Vec<Name>,
    /// With --compare by hand: IP address of the other host (its `recv --compare` starts iperf3)
    #[arg(long, value_name = "IP", conflicts_with = "lab")]
    pub(crate) peer: Option<std::net::IpAddr>,
}

/// What is measured, as the lab's driver end is told it.
pub(crate) struct Measurement<'a> {
    /// Name of the subcommand.
    pub(crate) name: &'static str,
    /// Its own arguments.
    pub(crate) args: Vec<String>,
    /// Its ends.
    pub(crate) team: Team,
    /// Intervals are told while it runs.
    pub(crate) intervals: bool,
    /// More is sent than what counts.
    pub(crate) omits: bool,
    /// Measures over a link.
    pub(crate) run: &'a dyn Fn(&mut Streams) -> Result<Outcome>,
    /// Payload of the frames that peer tools are to send; none: a full one.
    pub(crate) frame_bytes: Option<usize>,
    /// Folder for the distributions of round trips.
    pub(crate) hgrm: Option<&'a Path>,
    /// Measure so many times, ours and each that it is compared with in turns; none: once.
    pub(crate) rounds: Option<u32>,
}

impl LinkArgs {
    /// Opens the transport for a stream, counted from 0. The arguments then hold the interface that
    /// `auto` stands for.
    pub(crate) fn open(&mut self, stream: u32) -> Result<Link> {
        let mut fault = self.fault.clone();
        // Streams must not all lose the same frames.
        let seeds = SEEDS_OF_A_STREAM * u64::from(stream);
        fault.fault_seed = fault.fault_seed.wrapping_add(seeds);
        let spec = self.transport.spec(&fault).resolved()?;
        self.transport.iface.clone_from(&spec.iface);
        let name = match stream {
            0 => self.session.clone(),
            stream => format!("{}/{stream}", self.session),
        };
        Ok(open_link(&spec, session(&name))?)
    }

    /// The interface that carries the frames.
    pub(crate) fn iface(&self) -> &str {
        self.transport.iface.as_deref().unwrap_or("lo")
    }

    /// Waits for a frame, asleep or not.
    pub(crate) fn idle(&self, link: &mut Link) -> Result<()> {
        if self.spin {
            // Where both ends share a core, a loop that never yields would be pinging its own
            // clock.
            std::thread::yield_now();
        } else {
            link.rx.wait(Duration::from_micros(100))?;
        }
        Ok(())
    }
}

impl DriverArgs {
    /// Measures, here or in a lab, compares if asked, and prints.
    pub(crate) fn measure(mut self, what: &Measurement<'_>) -> Result<()> {
        let peers = self.peers(what)?;
        let lab = self.make_lab(what.team)?;
        let mut report = match what.rounds {
            Some(rounds) => self.in_rounds_with_peers(lab.as_ref(), what, peers, rounds)?,
            None => self.once_with_peers(lab.as_ref(), what, peers)?,
        };
        report.lab = self.lab;
        self.print(report, what)
    }

    /// Ours, once.
    fn ours(&mut self, lab: Option<&Lab>, what: &Measurement<'_>) -> Result<Report> {
        if let Some(lab) = lab {
            let places = self.places(Some(lab));
            let before = places.sent_frames();
            let mut report = self.in_lab(lab, what)?;
            // Over udp it counts joined frames.
            let counted = before.zip(places.sent_frames());
            let raw = self.link.transport.transport.is_raw();
            report
                .outcome
                .count_by_interface(counted.filter(|_| raw && !what.omits));
            return Ok(report);
        }
        let transport = self.link.transport.transport;
        // Peers need the privileges that there are, and so does opening once more.
        let keep = !self.compare.is_empty() || what.rounds.is_some();
        if !keep {
            drop_privileges_before_opening(transport)?;
        }
        let mut streams = Streams::open(&mut self.link, what.team)?;
        if !keep {
            drop_privileges_after_opening(transport)?;
        }
        let outcome = (what.run)(&mut streams)?;
        Ok(Report::new(self, streams.payload_max(), what.name, outcome))
    }

    /// Where frames leave and arrive.
    fn places<'a>(&'a self, lab: Option<&'a Lab>) -> Places<'a> {
        Places {
            lab,
            iface: lab.map_or(self.link.iface(), |_| "eth0"),
            peer: match lab {
                Some(lab) => Some(lab.host(1).ipv4().into()),
                None if self.link.iface() == "lo" => Some(Ipv4Addr::LOCALHOST.into()),
                None => self.peer,
            },
            core: self.core,
        }
    }

    fn print(&self, report: Report, what: &Measurement<'_>) -> Result<()> {
        if let Some(folder) = what.hgrm {
            report.outcome.write_hgrm(folder)?;
        }
        let curve = self.plot.as_ref().map(|path| (path, report.curve()));
        match (self.link.json, what.intervals) {
            (true, true) => Event::End(Box::new(report)).say()?,
            (true, false) => dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?),
            (false, _) => dogwild_lab::say!("{}", report.table()),
        }
        if let Some((path, curve)) = curve {
            curve.write_svg(path)?;
            if !self.link.json {
                dogwild_lab::say!("{}", path.display());
            }
        }
        Ok(())
    }
}

/// A process that goes with this.
pub(crate) struct Guard(pub(crate) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
