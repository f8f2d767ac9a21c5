//! A measurement between hosts of a lab: `recv` runs in all but the first, this program itself in
//! the first, and its intervals and its report are taken over.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use dogwild_lab::process::keep_on_core;
use dogwild_lab::{Lab, Spec};

use super::interval::Event;
use super::report::Report;
use super::streams::{Printer, Team};
use super::{DriverArgs, Guard, LinkArgs, Measurement};

impl LinkArgs {
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
    pub(super) fn make_lab(&self, team: Team) -> Result<Option<Lab>> {
        if !self.lab {
            return Ok(None);
        }
        let spec = Spec {
            mtu: self.link.transport.mtu.unwrap_or(1500),
            rate: self.link_rate.clone(),
            queue_bytes: self.queue,
            steer_receive: self.steer_receive,
            // Without a receiver there is still a host for frames to go to.
            ..Spec::of(1 + team.receivers.max(1))
        };
        Ok(Some(Lab::up(&spec)?))
    }

    pub(super) fn in_lab(&self, lab: &Lab, what: &Measurement<'_>) -> Result<Report> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let end = |host: u16, name: &str| -> Command {
            let mut command = lab.command(usize::from(host), &program);
            command
                .arg(name)
                .args(self.link.in_lab(host))
                .stdin(Stdio::null());
            command
        };
        let streams = what.team.streams.to_string();
        let mut responders = Vec::new();
        for host in 1..=what.team.receivers {
            let mut recv = end(host as u16, "recv");
            // What it says is for a person who starts the other end by hand.
            recv.args(["--quiet", "--parallel", &streams]);
            recv.stdout(Stdio::null());
            responders.push(Guard(recv.spawn()?));
        }
        let mut driver = end(0, what.name);
        if !dogwild_lab::out::shows_bars() {
            driver.arg("--quiet");
        }
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
        let mut sending = Guard(sending);
        let out = sending.0.stdout.take().context("its output is piped")?;
        let report = match what.intervals {
            true => self.take_over(out),
            false => whole(out),
        };
        let status = sending.0.wait()?;
        for responder in &mut responders {
            if let Some(status) = responder.0.try_wait()? {
                bail!("the receiving end ended with {status} (its message is above)");
            }
        }
        if !status.success() {
            bail!("the sending end ended with {status} (its message is above)");
        }
        let mut report = report?.context("the sending end printed no report")?;
        report.settings.core = self.core;
        Ok(report)
    }

    /// Prints intervals as they come, up to the report.
    fn take_over(&self, out: ChildStdout) -> Result<Option<Report>> {
        let mut printer = Printer {
            json: self.link.json,
            headed: &mut false,
        };
        for line in BufReader::new(out).lines() {
            match serde_json::from_str(&line?).context("the sending end printed something else")? {
                Event::Interval(interval) => printer.print(&interval)?,
                Event::End(report) => return Ok(Some(*report)),
            }
        }
        Ok(None)
    }
}

fn whole(mut out: ChildStdout) -> Result<Option<Report>> {
    let mut text = String::new();
    out.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text).ok())
}
