//! What `send`, `recv`, `ping` and `sweep` share: their arguments, where their ends are, and what
//! they report.
//!
//! By hand, `recv` runs on one host and the others on another, each with its own `--iface`. With
//! `--lab` this program makes two hosts, starts `recv` in one and itself in the other, and takes
//! its report over. Modules: `packet` (what a frame says), `driver` and `responder` (the two ends),
//! `ratios` (ours over its peers, once or in rounds), `report` (what comes out).

pub(crate) mod driver;
pub(crate) mod packet;
mod ratios;
pub(crate) mod report;
pub(crate) mod responder;

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dogwild::cli::args::{FaultArgs, TransportArgs, seconds, session};
use dogwild::node::{drop_privileges_after_opening, drop_privileges_before_opening, open_link};
use dogwild_lab::process::keep_on_core;
use dogwild_lab::{Lab, Spec};
use dogwild_net::Link;

use super::compare::Places;
use super::compare::names::Name;
use report::{Outcome, Report};

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
    /// Make two hosts here and start both ends (no root needed where user namespaces are allowed)
    #[arg(long, conflicts_with = "iface")]
    pub(crate) lab: bool,
    /// The lab's hosts receive on all cores (receive packet steering), not on the one that sends
    #[arg(long, requires = "lab")]
    pub(crate) steer_receive: bool,
    /// Send from this core only, counted from 0, ours and what --compare runs. Receiving ends run
    /// where they may (testpmd always sends from one core, 1 if not told; trafgen always from core
    /// 0)
    #[arg(long, value_name = "N", requires = "lab")]
    pub(crate) core: Option<usize>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Also draw the result (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<std::path::PathBuf>,
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
    /// Without a `recv` at the other end.
    pub(crate) alone: bool,
    /// Measures over a link.
    pub(crate) run: &'a dyn Fn(&mut driver::Driver) -> Result<Outcome>,
    /// Payload of the frames that peer tools are to send; none: a full one.
    pub(crate) frame_bytes: Option<usize>,
    /// Measure so many times, ours and each that it is compared with in turns; none: once.
    pub(crate) rounds: Option<u32>,
}

impl LinkArgs {
    /// Opens the transport; the arguments then hold the interface that `auto` stands for.
    pub(crate) fn open(&mut self) -> Result<Link> {
        let spec = self.transport.spec(&self.fault).resolved()?;
        self.transport.iface.clone_from(&spec.iface);
        Ok(open_link(&spec, session(&self.session))?)
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

    /// As the arguments of the end in host `host` of a lab.
    fn in_lab(&self, host: u16) -> Vec<String> {
        let mut there = self.transport.clone();
        there.iface = Some("eth0".into());
        let mut args = [there.to_args(host), self.fault.to_args(host)].concat();
        args.extend(["--session".into(), self.session.clone(), "--json".into()]);
        if self.spin {
            args.push("--spin".into());
        }
        args
    }
}

impl DriverArgs {
    /// Measures, here or in a lab, compares if asked, and prints.
    pub(crate) fn measure(mut self, what: &Measurement<'_>) -> Result<()> {
        let peers = self.peers(what)?;
        let lab = self.make_lab()?;
        let mut report = match what.rounds {
            Some(rounds) => self.in_rounds_with_peers(lab.as_ref(), what, peers, rounds)?,
            None => self.once_with_peers(lab.as_ref(), what, peers)?,
        };
        report.lab = self.lab;
        self.print(&report)
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
            report.outcome.count_by_interface(counted.filter(|_| raw));
            return Ok(report);
        }
        let transport = self.link.transport.transport;
        // Peers need the privileges that there are, and so does opening once more.
        let keep = !self.compare.is_empty() || what.rounds.is_some();
        if !keep {
            drop_privileges_before_opening(transport)?;
        }
        let mut driver = driver::Driver::open(&mut self.link, what.alone)?;
        if !keep {
            drop_privileges_after_opening(transport)?;
        }
        let outcome = (what.run)(&mut driver)?;
        Ok(Report::new(self, &driver, what.name, outcome))
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

    fn make_lab(&self) -> Result<Option<Lab>> {
        if !self.lab {
            return Ok(None);
        }
        let spec = Spec {
            mtu: self.link.transport.mtu.unwrap_or(1500),
            steer_receive: self.steer_receive,
            ..Spec::of(2)
        };
        Ok(Some(Lab::up(&spec)?))
    }

    fn in_lab(&self, lab: &Lab, what: &Measurement<'_>) -> Result<Report> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let end = |host: u16, name: &str| -> Command {
            let mut command = lab.command(usize::from(host), &program);
            command
                .arg(name)
                .args(self.link.in_lab(host))
                .stdin(Stdio::null());
            command
        };
        let mut responder = match what.alone {
            true => None,
            false => Some(Guard(end(1, "recv").stdout(Stdio::null()).spawn()?)),
        };
        let mut driver = end(0, what.name);
        driver
            .args(["--seconds", &self.seconds.to_string()])
            .args(&what.args)
            .stdout(Stdio::piped());
        if let Some(core) = self.core {
            keep_on_core(&mut driver, core);
        }
        let sending = driver.spawn().with_context(|| match self.core {
            Some(core) => format!(
                "cannot start the sending end on core {core} (--core; `lscpu --extended` lists the cores)"
            ),
            None => "cannot start the sending end".to_owned(),
        })?;
        let output = sending.wait_with_output()?;
        if let Some(responder) = &mut responder
            && let Some(status) = responder.0.try_wait()?
        {
            bail!("the receiving end ended with {status} (its message is above)");
        }
        if !output.status.success() {
            bail!(
                "the sending end ended with {} (its message is above)",
                output.status
            );
        }
        let mut report: Report =
            serde_json::from_slice(&output.stdout).context("the sending end printed no report")?;
        report.settings.core = self.core;
        Ok(report)
    }

    fn print(&self, report: &Report) -> Result<()> {
        if self.link.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(report)?);
        } else {
            dogwild_lab::say!("{}", report.table());
        }
        if let Some(path) = &self.plot {
            report.curve().write_svg(path)?;
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
