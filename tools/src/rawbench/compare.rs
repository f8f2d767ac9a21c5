//! `--compare`: what iperf3, trafgen and dpdk-testpmd do on the same link, in the same run.
//!
//! Runs those programs in both hosts; counts frames by the interfaces' own counters where a tool
//! does not tell. Invariant: a tool that is not installed or fails is named, and is no error.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dogwild_lab::Lab;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::link::Guard;
use super::link::report::plain_table;
use super::machine::Machine;

/// Longest time for a tool to send its first frame.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Frames that tell that a tool is sending: an interface alone sends a few.
const STARTED_FRAMES: u64 = 100;
/// Bytes of IPv4 and UDP headers.
const IP_UDP_HEADERS: usize = 28;
/// Bytes of Ethernet header, which testpmd counts into a frame.
const ETHERNET_HEADER: usize = 14;

/// The two ends of the link.
pub(crate) struct Places<'a> {
    pub(crate) lab: Option<&'a Lab>,
    pub(crate) iface: &'a str,
    /// The other host.
    pub(crate) peer: Option<IpAddr>,
}

/// What a tool did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) tool: String,
    pub(crate) sent_frames_per_s: Option<f64>,
    pub(crate) received_frames_per_s: Option<f64>,
    /// Of payload.
    pub(crate) received_bits_per_s: Option<f64>,
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
        let mut table = plain_table([&title, "sent/s", "received/s", "Gb/s", ""]);
        let number = |value: Option<f64>, scale: f64, digits: usize| {
            value.map_or(String::new(), |value| format!("{:.digits$}", value / scale))
        };
        for peer in &self.peers {
            table.add_row([
                peer.tool.clone(),
                number(peer.sent_frames_per_s, 1.0, 0),
                number(peer.received_frames_per_s, 1.0, 0),
                number(peer.received_bits_per_s, 1e9, 3),
                peer.error.clone().unwrap_or_default(),
            ]);
        }
        let mut text = format!("\n{table}");
        for missing in &self.missing {
            let (tool, package) = (&missing.tool, &missing.debian_package);
            text += &format!("\n{tool} is not installed: apt-get install {package}");
        }
        text
    }
}

/// A program in PATH or where Debian keeps those of administrators.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Runs every tool for `seconds` with frames of this payload.
pub(crate) fn run(places: &Places<'_>, frame_bytes: usize, seconds: f64) -> Comparison {
    let mut comparison = Comparison {
        frame_bytes,
        ..Comparison::default()
    };
    let tools: [(&str, &str, &[&str]); 3] = [
        ("iperf3", "iperf3", &["TCP", "UDP"]),
        ("trafgen", "netsniff-ng", &[""]),
        ("dpdk-testpmd", "dpdk-dev", &["net_af_packet", "net_af_xdp"]),
    ];
    for (tool, debian_package, ways) in tools {
        let Some(program) = find(tool) else {
            comparison.missing.push(Missing {
                tool: tool.to_owned(),
                debian_package: debian_package.to_owned(),
            });
            continue;
        };
        for &way in ways {
            eprintln!("comparing with {tool} {way}");
            let peer = match tool {
                "iperf3" => iperf3(places, &program, way == "UDP", frame_bytes, seconds),
                "trafgen" => trafgen(places, &program, frame_bytes, seconds),
                _ => testpmd(places, &program, way, frame_bytes, seconds),
            };
            comparison.peers.push(peer.unwrap_or_else(|error| Peer {
                tool: format!("{tool} {way}").trim().to_owned(),
                error: Some(format!("{error:#}")),
                ..Peer::default()
            }));
        }
    }
    comparison
}

impl Places<'_> {
    /// A command at the sending end.
    fn near(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self.lab {
            Some(lab) => lab.command(0, program),
            None => {
                let mut command = Command::new(program);
                dogwild_lab::process::die_with_parent(&mut command);
                command
            }
        }
    }

    /// Frames that the interface of `host` has received and sent; the far one's only in a lab.
    fn counters(&self, host: usize) -> Option<(u64, u64)> {
        let mut command = match (self.lab, host) {
            (Some(lab), host) => lab.command(host, "cat"),
            (None, 0) => Command::new("cat"),
            (None, _) => return None,
        };
        let output = command.arg("/proc/net/dev").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let start = format!("{}:", self.iface);
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&start))?;
        let words: Vec<u64> = line
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        Some((*words.get(1)?, *words.get(9)?))
    }

    /// Lets `command` send for `seconds`, `input` on its standard input, and counts what the
    /// interfaces see.
    fn count(&self, mut command: Command, input: Option<&str>, seconds: f64) -> Result<Rates> {
        if self.iface == "lo" {
            bail!("needs Ethernet: --lab, or --iface on two hosts");
        }
        let sent = || -> Result<u64> {
            let near = self
                .counters(0)
                .context("/proc/net/dev lacks the interface")?;
            Ok(near.1)
        };
        // What is read takes a while: each count has its own time.
        let far = || self.counters(1).map(|far| (Instant::now(), far.0));
        let idle = sent()?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = Guard(command.spawn()?);
        if let (Some(text), Some(mut stdin)) = (input, child.0.stdin.take_if(|_| input.is_some())) {
            stdin.write_all(text.as_bytes())?;
        }
        let start = Instant::now();
        while sent()? < idle + STARTED_FRAMES {
            if child.0.try_wait()?.is_some() || start.elapsed() > START_WITHIN {
                bail!("sends nothing: {}", last_words(&mut child));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = ((Instant::now(), sent()?), far());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let after = ((Instant::now(), sent()?), far());
        let rate = |(then, before): (Instant, u64), (now, after): (Instant, u64)| {
            after.saturating_sub(before) as f64 / (now - then).as_secs_f64()
        };
        Ok(Rates {
            sent: rate(before.0, after.0),
            received: before
                .1
                .zip(after.1)
                .map(|(before, after)| rate(before, after)),
        })
    }
}

/// Frames per second that interfaces counted.
struct Rates {
    sent: f64,
    received: Option<f64>,
}

impl Rates {
    fn peer(self, tool: impl Into<String>, bytes: usize) -> Peer {
        Peer {
            tool: tool.into(),
            sent_frames_per_s: Some(self.sent),
            received_frames_per_s: self.received,
            received_bits_per_s: self.received.map(|frames| frames * bytes as f64 * 8.0),
            error: None,
        }
    }
}

/// What a program that did not work has said last.
fn last_words(child: &mut Guard) -> String {
    let _ = child.0.kill();
    let mut said = String::new();
    if let Some(mut stderr) = child.0.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
    }
    let said = said.trim().lines().last().unwrap_or_default();
    if said.is_empty() {
        "it said nothing".into()
    } else {
        said.to_owned()
    }
}

fn iperf3(
    places: &Places<'_>,
    program: &PathBuf,
    udp: bool,
    frame_bytes: usize,
    seconds: f64,
) -> Result<Peer> {
    let Some(peer) = places.peer else {
        bail!("needs --peer IP, and `recv --compare` there");
    };
    // A datagram that fills a raw frame would be sent in pieces.
    let mtu = Machine::here(places.iface).mtu;
    let mtu = places.lab.map_or(mtu, |lab| lab.spec().mtu as usize);
    let bytes = frame_bytes.min(mtu.saturating_sub(IP_UDP_HEADERS));
    let server = places.lab.map(|lab| {
        let mut server = lab.command(1, program);
        server.args(["-s", "-1"]).stdin(Stdio::null());
        server.stdout(Stdio::null()).stderr(Stdio::null());
        server.spawn().map(Guard)
    });
    let _server = server.transpose()?;
    let start = Instant::now();
    let result = loop {
        let mut client = places.near(program);
        // Whole seconds: iperf3 takes no others.
        client.args([
            "-J",
            "-t",
            &format!("{}", seconds.ceil()),
            "-c",
            &peer.to_string(),
        ]);
        if udp {
            client.args(["-u", "-b", "0", "-l", &bytes.to_string()]);
        }
        let output = client.stdin(Stdio::null()).output()?;
        let result: Value = serde_json::from_slice(&output.stdout).context("iperf3's JSON")?;
        match result["error"].as_str() {
            None => break result,
            // The server may not listen yet.
            Some(_) if start.elapsed() < Duration::from_secs(2) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Some(error) => bail!("{error}"),
        }
    };
    let end = &result["end"];
    if udp {
        let number = |name: &str| end["sum"][name].as_f64();
        let seconds = number("seconds").unwrap_or(seconds);
        let sent = number("packets").context("iperf3 counted no packets")?;
        let received = sent - number("lost_packets").unwrap_or(0.0);
        return Ok(Peer {
            tool: format!("iperf3 UDP ({bytes} bytes)"),
            sent_frames_per_s: Some(sent / seconds),
            received_frames_per_s: Some(received / seconds),
            received_bits_per_s: Some(received / seconds * bytes as f64 * 8.0),
            error: None,
        });
    }
    let congestion = end["sender_tcp_congestion"].as_str().unwrap_or("unknown");
    Ok(Peer {
        tool: format!("iperf3 TCP ({congestion})"),
        received_bits_per_s: end["sum_received"]["bits_per_second"].as_f64(),
        ..Peer::default()
    })
}

fn trafgen(places: &Places<'_>, program: &PathBuf, bytes: usize, seconds: f64) -> Result<Peer> {
    // To a multicast address, from a local one, EtherType "local experimental": as our own frames.
    let frame = format!(
        "{{ 0x03, 0x44, 0x57, 0x00, 0x00, 0x01, 0x02, 0x44, 0x57, 0x00, 0x00, 0x99, 0x88, 0xb5, \
         fill(0x5a, {bytes}) }}\n"
    );
    let mut command = places.near(program);
    command.args(["--cpus", "1", "--dev", places.iface, "--conf", "-"]);
    let rates = places.count(command, Some(&frame), seconds)?;
    Ok(rates.peer("trafgen", bytes))
}

fn testpmd(
    places: &Places<'_>,
    program: &PathBuf,
    driver: &str,
    bytes: usize,
    seconds: f64,
) -> Result<Peer> {
    let mut command = places.near(program);
    command
        .args([
            "-l",
            "0,1",
            "--no-huge",
            "-m",
            "256",
            "--in-memory",
            "--no-pci",
        ])
        .arg(format!("--vdev={driver}0,iface={}", places.iface))
        .args(["--", "--forward-mode=txonly", "--no-mlockall"])
        .arg("--total-num-mbufs=16384")
        .arg(format!("--txpkts={}", bytes + ETHERNET_HEADER));
    // Its input stays open: it ends when it can read.
    let rates = places.count(command, None, seconds)?;
    Ok(rates.peer(format!("dpdk-testpmd {driver}"), bytes))
}
