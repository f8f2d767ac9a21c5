//! `--compare`: what iperf3, trafgen and dpdk-testpmd do on the same link, in the same run.
//!
//! Runs those programs in both hosts; counts frames by the interfaces' own counters where a tool
//! does not tell. `names`: what can be asked for; `tools`: how each is run. Invariant: a tool that
//! is not installed or fails is named, and is no error.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dogwild::watch::screen::Columns;
use dogwild_lab::Lab;
use serde::{Deserialize, Serialize};

use super::link::Guard;
use super::machine::InterfaceCounters;

pub(crate) mod names;
mod tools;

use names::{Tool, Way};

/// Longest time for a tool to send its first frame.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Time for a tool to clean up after it was asked to end.
const END_WITHIN: Duration = Duration::from_secs(3);
/// Bytes of a header, which interfaces count.
const ETHERNET_HEADER_BYTES: f64 = 14.0;
/// Frames of other programs and what adapters add (padding to 60 bytes, a checksum) change the mean
/// by less.
const PAYLOAD_SLACK_BYTES: f64 = 48.0;
/// Frames that tell that a tool is sending: an interface alone sends a few.
const STARTED_FRAMES: u64 = 100;

/// The two ends of the link.
pub(crate) struct Places<'a> {
    pub(crate) lab: Option<&'a Lab>,
    pub(crate) iface: &'a str,
    /// The other host.
    pub(crate) peer: Option<IpAddr>,
    /// The core that sends.
    pub(crate) core: Option<usize>,
}

/// What a tool did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) tool: String,
    pub(crate) sent_frames_per_s: Option<f64>,
    pub(crate) received_frames_per_s: Option<f64>,
    /// Of payload.
    pub(crate) received_bits_per_s: Option<f64>,
    /// Payload of a frame, as the interface counted it or the tool was told.
    pub(crate) payload_bytes: Option<f64>,
    /// How it was run.
    pub(crate) command: Option<String>,
    /// Why it did nothing.
    pub(crate) error: Option<String>,
}

/// A tool that is not installed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Missing {
    pub(crate) tool: String,
    pub(crate) debian_package: String,
}

/// All of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) frame_bytes: usize,
    pub(crate) peers: Vec<Peer>,
    pub(crate) missing: Vec<Missing>,
}

impl Comparison {
    pub(crate) fn table(&self) -> String {
        let title = format!("peer, {} bytes", self.frame_bytes);
        let mut table = Columns::boxed([&title, "payload", "sent/s", "received/s", "Gb/s", ""])
            .with_words(5..6);
        let number = |value: Option<f64>, scale: f64, digits: usize| {
            value.map_or(String::new(), |value| format!("{:.digits$}", value / scale))
        };
        for peer in &self.peers {
            table.row([
                peer.tool.clone(),
                number(peer.payload_bytes, 1.0, 0),
                number(peer.sent_frames_per_s, 1.0, 0),
                number(peer.received_frames_per_s, 1.0, 0),
                number(peer.received_bits_per_s, 1e9, 3),
                peer.error.clone().unwrap_or_default(),
            ]);
        }
        format!("\n{table}{}", notes(&self.peers, &self.missing))
    }
}

/// How each was run, and what is missing.
pub(crate) fn notes<'a>(peers: impl IntoIterator<Item = &'a Peer>, missing: &[Missing]) -> String {
    let mut text = String::new();
    for peer in peers {
        if let Some(command) = &peer.command {
            text += &format!("\n{}: {command}", peer.tool);
        }
    }
    for missing in missing {
        let (tool, package) = (&missing.tool, &missing.debian_package);
        text += &format!("\n{tool} is not installed: apt-get install {package}");
    }
    text
}

/// A command as one writes it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// A program in PATH or where Debian keeps those of administrators.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Those that are installed, and the tools that are not. Our own are always there.
pub(crate) fn installed(mut ways: Vec<Way>) -> (Vec<Way>, Vec<Missing>) {
    let mut missing: Vec<Missing> = Vec::new();
    ways.retain(|way| {
        let Way::Tool(tool) = way else {
            return true;
        };
        let (program, package) = tool.program();
        let found = find(program).is_some();
        if !found && missing.iter().all(|known| known.tool != program) {
            missing.push(Missing {
                tool: program.to_owned(),
                debian_package: package.to_owned(),
            });
        }
        found
    });
    (ways, missing)
}

/// Runs a tool for `seconds` with frames of this payload.
pub(crate) fn run(
    places: &Places<'_>,
    tool: Tool,
    frame_bytes: usize,
    seconds: f64,
) -> Result<Peer> {
    let (name, _) = tool.program();
    let program = &find(name).with_context(|| format!("{name} has gone"))?;
    match tool {
        Tool::Iperf3Tcp => tools::iperf3(places, program, false, frame_bytes, seconds),
        Tool::Iperf3Udp => tools::iperf3(places, program, true, frame_bytes, seconds),
        Tool::Trafgen => tools::trafgen(places, program, frame_bytes, seconds),
        Tool::TestpmdAfPacket => {
            tools::testpmd(places, program, "net_af_packet", frame_bytes, seconds)
        }
        Tool::TestpmdAfXdp => tools::testpmd(places, program, "net_af_xdp", frame_bytes, seconds),
    }
}

impl Peer {
    /// One that did nothing.
    pub(crate) fn failed(way: Way, error: &anyhow::Error) -> Self {
        Self {
            tool: way.name().to_owned(),
            error: Some(format!("{error:#}")),
            ..Self::default()
        }
    }
}

impl Places<'_> {
    /// A command at the sending end, on the core that sends.
    fn near(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.near_anywhere(program);
        if let Some(core) = self.core {
            dogwild_lab::process::keep_on_core(&mut command, core);
        }
        command
    }

    /// A command of [`near`](Self::near) as one writes it.
    fn line(&self, command: &Command) -> String {
        let on_core = |core| format!("taskset -c {core} ");
        self.core.map_or(String::new(), on_core) + &line(command)
    }

    /// A command at the sending end that chooses its cores itself.
    fn near_anywhere(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self.lab {
            Some(lab) => lab.command(0, program),
            None => {
                let mut command = Command::new(program);
                dogwild_lab::process::die_with_parent(&mut command);
                command
            }
        }
    }

    /// Frames that the near interface has counted.
    pub(crate) fn sent_frames(&self) -> Option<u64> {
        self.counters(0).map(|counters| counters.sent_frames)
    }

    /// What the interface of `host` has counted; the far one's only in a lab.
    fn counters(&self, host: usize) -> Option<InterfaceCounters> {
        let cat = match (self.lab, host) {
            (Some(lab), host) => lab.command(host, "cat"),
            (None, 0) => Command::new("cat"),
            (None, _) => return None,
        };
        InterfaceCounters::read(cat, self.iface)
    }

    /// Lets `command` send for `seconds`, `input` on its standard input, and counts what the
    /// interfaces see.
    fn count(
        &self,
        command: &mut Command,
        input: Option<&str>,
        frame_bytes: usize,
        seconds: f64,
    ) -> Result<Rates> {
        if self.iface == "lo" {
            bail!("needs Ethernet: --lab, or --iface on two hosts");
        }
        let sent = || -> Result<u64> {
            self.sent_frames()
                .context("/proc/net/dev lacks the interface")
        };
        // Reading takes a while: each count has its own time, the middle of that.
        let timed = |host: usize| {
            let start = Instant::now();
            let counters = self.counters(host)?;
            Some((start + start.elapsed() / 2, counters))
        };
        let both = || -> Result<_> {
            let near = timed(0).context("the interface has gone")?;
            Ok((near, timed(1)))
        };
        let quiet = Instant::now();
        let mut idle = sent()?;
        while {
            std::thread::sleep(Duration::from_millis(50));
            let before = std::mem::replace(&mut idle, sent()?);
            idle > before + STARTED_FRAMES / 10
        } {
            if quiet.elapsed() > START_WITHIN {
                bail!("something else is sending on `{}`", self.iface);
            }
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut family = Family(Guard(command.spawn()?));
        let stdin = &mut family.0.0.stdin;
        if let (Some(text), Some(mut stdin)) = (input, stdin.take_if(|_| input.is_some())) {
            stdin.write_all(text.as_bytes())?;
        }
        let start = Instant::now();
        while sent()? < idle + STARTED_FRAMES {
            if family.0.0.try_wait()?.is_some() || start.elapsed() > START_WITHIN {
                bail!("sends nothing: {}", last_words(&mut family));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = both()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let after = both()?;
        if family.0.0.try_wait()?.is_some() {
            bail!("ended early: {}", last_words(&mut family));
        }
        type Count = (Instant, InterfaceCounters);
        let rate = |before: Count, after: Count, of: fn(&InterfaceCounters) -> u64| {
            let seconds = (after.0 - before.0).as_secs_f64();
            of(&after.1).saturating_sub(of(&before.1)) as f64 / seconds
        };
        let far = before.1.zip(after.1);
        let received = |of| far.map(|(before, after)| rate(before, after, of));
        let sent = rate(before.0, after.0, |count| count.sent_frames);
        let sent_bytes = rate(before.0, after.0, |count| count.sent_bytes);
        let payload_bytes = sent_bytes / sent - ETHERNET_HEADER_BYTES;
        if (payload_bytes - frame_bytes as f64).abs() > PAYLOAD_SLACK_BYTES {
            bail!("sends {payload_bytes:.0} bytes per frame instead of {frame_bytes}");
        }
        Ok(Rates {
            payload_bytes,
            sent,
            received: received(|count| count.received_frames),
            received_bytes: received(|count| count.received_bytes),
        })
    }
}

/// A program that leaves the work to its children, which would go on after its end.
struct Family(Guard);

impl Family {
    /// Asks all of it to end, which gives it time to take its XDP program off the interface, and
    /// ends what is left.
    fn end(&mut self) {
        let pid = self.0.0.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let signal = |force| {
            for pid in children.split_ascii_whitespace() {
                // One that is gone already is as good.
                let _ = pid.parse().map(|pid| dogwild_lab::sys::end(pid, force));
            }
        };
        let _ = dogwild_lab::sys::end(pid, false);
        signal(false);
        let asked = Instant::now();
        while asked.elapsed() < END_WITHIN && matches!(self.0.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.0.kill();
        signal(true);
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.end();
    }
}

/// Frames and bytes per second that interfaces counted.
struct Rates {
    payload_bytes: f64,
    sent: f64,
    received: Option<f64>,
    /// Ethernet headers included.
    received_bytes: Option<f64>,
}

impl Rates {
    fn peer(self, tool: impl Into<String>, command: String) -> Peer {
        let payload = |(frames, bytes): (f64, f64)| bytes - frames * ETHERNET_HEADER_BYTES;
        Peer {
            tool: tool.into(),
            payload_bytes: Some(self.payload_bytes),
            command: Some(command),
            sent_frames_per_s: Some(self.sent),
            received_frames_per_s: self.received,
            received_bits_per_s: self
                .received
                .zip(self.received_bytes)
                .map(|both| payload(both) * 8.0),
            error: None,
        }
    }
}

/// The first complaint of a program that did not work, or its last words.
fn last_words(family: &mut Family) -> String {
    // All of it: a child that lives holds the other end of what is read here.
    family.end();
    let mut said = String::new();
    if let Some(mut stderr) = family.0.0.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
    }
    const TELLING: [&str; 5] = ["annot", "rror", "ailed", "ermission", "nvalid"];
    let telling = |line: &&str| TELLING.iter().any(|word| line.contains(word));
    let mut lines = said.trim().lines();
    let last = lines.clone().next_back().unwrap_or_default();
    let said = lines.find(telling).unwrap_or(last);
    if said.is_empty() {
        "it said nothing".into()
    } else {
        said.to_owned()
    }
}
