//! The peer tools, each with the arguments that make it send what ours sends.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Guard, Peer, Places, START_WITHIN, line};
use crate::machine::Machine;

/// Bytes of Ethernet header, which testpmd counts into a frame.
const ETHERNET_HEADER: usize = 14;
/// What testpmd's buffers and slots hold unless told otherwise, in bytes.
const TESTPMD_BYTES: usize = 2048;
/// What testpmd keeps free in front of a frame, in bytes.
const TESTPMD_HEADROOM: usize = 128;
/// Bytes of IPv4 and UDP headers.
const IP_UDP_HEADERS: usize = 28;
/// Payload that fits into trafgen's ring without more ado.
const TRAFGEN_PLAIN_BYTES: usize = 1500;
/// More than trafgen sends.
const TRAFGEN_FRAMES_PER_S: f64 = 5e6;

pub(super) fn iperf3(
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
    // Whole seconds: iperf3 takes no others.
    let mut args = ["-J", "-t", &format!("{}", seconds.ceil()), "-c"]
        .map(str::to_owned)
        .to_vec();
    args.push(peer.to_string());
    if udp {
        args.extend(udp_args(program, places.lab.is_some(), bytes)?);
    }
    let start = Instant::now();
    let (result, command) = loop {
        let mut client = places.near(program);
        client.args(&args);
        let output = client.stdin(Stdio::null()).output()?;
        let result: Value = serde_json::from_slice(&output.stdout).context("iperf3's JSON")?;
        match result["error"].as_str() {
            None => break (result, places.line(&client)),
            // The server may not listen yet.
            Some(_) if start.elapsed() < Duration::from_secs(2) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Some(error) => bail!("{error}"),
        }
    };
    let end = &result["end"];
    let version = result["start"]["version"].as_str().unwrap_or_default();
    let version = version.trim_start_matches("iperf ");
    if udp {
        let number = |name: &str| end["sum"][name].as_f64();
        let seconds = number("seconds").unwrap_or(seconds);
        let sent = number("packets").context("iperf3 counted no packets")?;
        let received = sent - number("lost_packets").unwrap_or(0.0);
        return Ok(Peer {
            tool: format!("iperf3 {version} UDP"),
            payload_bytes: Some(bytes as f64),
            sent_frames_per_s: Some(sent / seconds),
            received_frames_per_s: Some(received / seconds),
            received_bits_per_s: Some(received / seconds * bytes as f64 * 8.0),
            command: Some(command),
            error: None,
        });
    }
    let congestion = end["sender_tcp_congestion"].as_str().unwrap_or("unknown");
    Ok(Peer {
        tool: format!("iperf3 {version} TCP ({congestion})"),
        received_bits_per_s: end["sum_received"]["bits_per_second"].as_f64(),
        command: Some(command),
        ..Peer::default()
    })
}

/// What makes iperf3's UDP fastest: no limit to the rate, one stream, socket buffers as ours, and
/// segmentation offload where this iperf3 has it (3.21 and later). Buffers are set in a lab only,
/// where the other end has the same limits: iperf3 ends if it is granted less.
fn udp_args(program: &PathBuf, lab: bool, bytes: usize) -> Result<Vec<String>> {
    let mut args = ["-u", "-b", "0", "-l", &bytes.to_string()]
        .map(str::to_owned)
        .to_vec();
    let limit = |name: &str| -> Option<usize> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}_max")).ok()?;
        text.trim().parse().ok()
    };
    if let (true, Some(rx), Some(tx)) = (lab, limit("rmem"), limit("wmem")) {
        let buffer = dogwild_net::udp::UdpConfig::default().buffer_bytes;
        args.extend(["-w".to_owned(), buffer.min(rx).min(tx).to_string()]);
    }
    let help = Command::new(program).arg("--help").output()?;
    if String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).contains("--gsro") {
        args.push("--gsro".to_owned());
    }
    Ok(args)
}

pub(super) fn trafgen(
    places: &Places<'_>,
    program: &PathBuf,
    bytes: usize,
    seconds: f64,
) -> Result<Peer> {
    // To a multicast address, from a local one, EtherType "local experimental": as our own frames.
    let frame = format!(
        "{{ 0x03, 0x44, 0x57, 0x00, 0x00, 0x01, 0x02, 0x44, 0x57, 0x00, 0x00, 0x99, 0x88, 0xb5, \
         fill(0x5a, {bytes}) }}\n"
    );
    let mut command = places.near(program);
    command.args(["--cpus", "1", "--dev", places.iface, "--conf", "-"]);
    if bytes > TRAFGEN_PLAIN_BYTES {
        command.arg("--jumbo-support");
    }
    // Its sending child outlives it: should this program be killed, the frames end some time.
    let frames = (seconds + START_WITHIN.as_secs_f64()) * TRAFGEN_FRAMES_PER_S;
    command.args(["--num", &format!("{frames:.0}")]);
    // It copies its configuration into a file in its folder, and removes it.
    command.current_dir(std::env::temp_dir());
    let rates = places.count(&mut command, Some(&frame), bytes, seconds)?;
    let line = format!("{} <<< '{}'", places.line(&command), frame.trim());
    Ok(rates.peer("trafgen", line))
}

pub(super) fn testpmd(
    places: &Places<'_>,
    program: &PathBuf,
    driver: &str,
    bytes: usize,
    seconds: f64,
) -> Result<Peer> {
    // A frame has to fit into one slot of the ring, and what fits there into one buffer; else
    // testpmd sends shorter ones without a word.
    let frame = bytes + ETHERNET_HEADER;
    let (slot, ring) = match driver {
        "net_af_packet" if frame > TESTPMD_BYTES - 100 => (16_384, ",blocksz=65536,framesz=16384"),
        _ => (frame.max(TESTPMD_BYTES), ""),
    };
    let buffer = slot + TESTPMD_HEADROOM;
    // It sends from one core and waits for words on another, the main one.
    let core = places.core.unwrap_or(1);
    let main = usize::from(core == 0);
    let mut command = places.near_anywhere(program);
    command
        .arg("-l")
        .arg(format!("{main},{core}"))
        .arg(format!("--main-lcore={main}"))
        .args(["--no-huge", "-m", "256", "--no-shconf", "--no-pci"])
        .arg(format!("--vdev={driver}0,iface={}{ring}", places.iface))
        .args(["--", "--forward-mode=txonly", "--no-mlockall"])
        .arg("--total-num-mbufs=8192")
        .arg(format!("--mbuf-size={buffer}"))
        .arg(format!("--txpkts={frame}"));
    // Its input stays open: it ends when it can read.
    let rates = places.count(&mut command, None, bytes, seconds)?;
    Ok(rates.peer(format!("dpdk-testpmd {driver}"), line(&command)))
}
