//! Groups of arguments that several subcommands share, and the settings that they make.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

pub use super::parse::parse;
pub use dogwild_lab::share::share;

use crate::node::{Transport, TransportSpec};
use crate::settings::limits::{BYTES_MIN, DELAY_MS, MTU, STEPS_PER_S};
use crate::settings::{BurstSettings, FaultSettings, TransportSettings, capture_of_node};
use crate::solver::SolverSpec;
use crate::solver::data::Shard;
use crate::weights::session_number;

/// How nodes reach each other.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Transport")]
pub struct TransportArgs {
    /// How frames travel
    #[arg(long, value_parser = transports(), default_value = "udp")]
    pub transport: Transport,
    /// Network interface, or auto (udp: loopback if none is given; verbs: also RDMA device or
    /// device:port)
    #[arg(long, value_name = "NAME")]
    pub iface: Option<String>,
    /// MTU of the link in bytes; the same on all nodes [default: the interface's, at most 9000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(i64::from(*MTU.start())..=i64::from(*MTU.end())))]
    pub mtu: Option<u32>,
    /// UDP port of the group, and of the node itself [default: from the session]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// No segmentation offload (udp): each frame is a packet of its own, as emulated loss needs
    #[arg(long)]
    pub no_segmentation: bool,
    /// Seal frames with this key (32 bytes or 64 hexadecimal digits, mode 600); the same on all
    /// nodes
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Send no more than this, headers included, as a slower link would: 1Mbit, 12.5MB (per second)
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = rate)]
    pub pace: Option<Rate>,
    /// Write what is sent and received to a pcapng file of at most 1 GiB (train: one per node,
    /// NAME.nK.EXT)
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
}

/// What happens to received frames on purpose.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults on purpose (each receiver by itself)")]
pub struct FaultArgs {
    /// Share of frames to drop, as 0.1 or 10%
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub loss: f64,
    /// Losses in bursts (Gilbert-Elliott): chance that a good line turns bad, that a bad one turns
    /// good, and of a loss while bad (1 if not given) and good (0)
    #[arg(long, allow_hyphen_values = true, value_name = "P,R[,BAD[,GOOD]]", value_parser = bursts)]
    pub loss_burst: Option<BurstSettings>,
    /// Share of frames to flip bits in (use --key-file: nothing else finds them)
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub corrupt: f64,
    /// Share of frames to deliver twice
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub duplicate: f64,
    /// Share of frames to deliver late
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub reorder: f64,
    /// Longest extra delay of every frame, milliseconds
    #[arg(long, allow_hyphen_values = true, value_name = "MS", default_value_t = 0.0, value_parser = delay_ms)]
    pub delay: f64,
    /// Seed of these faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub fault_seed: u64,
}

/// Takes the name of a transport.
pub fn transports() -> impl TypedValueParser<Value = Transport> {
    let help = |transport| match transport {
        Transport::Udp => "IP multicast and unicast; needs no privilege",
        Transport::PacketMmap => "Raw Ethernet through kernel rings; needs CAP_NET_RAW",
        Transport::AfXdp => {
            "Raw Ethernet through rings shared with the driver; needs CAP_NET_RAW, CAP_NET_ADMIN and \
             CAP_BPF"
        }
        Transport::XdpMmap => {
            "Raw Ethernet, af_xdp to send and packet_mmap to receive; needs CAP_NET_RAW"
        }
        Transport::Verbs => {
            "Datagrams of InfiniBand or RoCE v2; needs an RDMA device and libibverbs"
        }
    };
    let names = Transport::ALL.map(|one| PossibleValue::new(one.name()).help(help(one)));
    PossibleValuesParser::new(names).try_map(|name| {
        let mut all = Transport::ALL.into_iter();
        all.find(|one| one.name() == name)
            .ok_or_else(|| format!("no transport {name}"))
    })
}

/// Bytes (per second), or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate(pub Option<f64>);

impl Rate {
    pub(super) fn to_arg(self) -> String {
        self.0.map_or("max".to_owned(), |bytes| bytes.to_string())
    }

    /// In the words of tc; none: no limit.
    pub(super) fn tc(self) -> Option<String> {
        Some(format!("{:.0}bit", self.0? * 8.0))
    }
}

/// A choice, by its name on the command line.
pub fn as_value<S: Serializer>(choice: &impl ValueEnum, to: S) -> Result<S::Ok, S::Error> {
    choice
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .serialize(to)
}

/// A choice by its name, or none.
pub fn as_value_or_none<S: Serializer>(
    choice: &Option<impl ValueEnum>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match choice {
        Some(choice) => as_value(choice, to),
        None => to.serialize_none(),
    }
}

impl Serialize for TransportArgs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.settings().serialize(to)
    }
}

impl Serialize for FaultArgs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.settings().serialize(to)
    }
}

impl TransportArgs {
    /// The settings that they make.
    pub fn settings(&self) -> TransportSettings {
        TransportSettings {
            transport: self.transport,
            iface: self.iface.clone(),
            mtu: self.mtu,
            port: self.port,
            no_segmentation: self.no_segmentation,
            key_file: self.key_file.clone(),
            pace_bytes_per_s: self.pace.and_then(|rate| rate.0),
            capture: self.capture.clone(),
        }
    }

    /// What to open, with `fault` on top.
    pub fn spec(&self, fault: &FaultArgs) -> TransportSpec {
        self.settings().spec(&fault.settings())
    }

    /// The same as command-line arguments, for `dogwild-rawbench`, which passes them on; each node
    /// gets a capture file of its own.
    pub fn to_args(&self, node: u16) -> Vec<String> {
        let mut args = vec!["--transport".into(), self.transport.name().into()];
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.to_owned(), value]);
            }
        };
        add("--iface", self.iface.clone());
        add("--mtu", self.mtu.map(|mtu| mtu.to_string()));
        add("--port", self.port.map(|port| port.to_string()));
        add("--pace", self.pace.map(Rate::to_arg));
        let path = |path: &Path| path.display().to_string();
        add("--key-file", self.key_file.as_deref().map(path));
        let capture = self.capture.as_deref();
        add(
            "--capture",
            capture.map(|base| path(&capture_of_node(base, node))),
        );
        if self.no_segmentation {
            args.push("--no-segmentation".into());
        }
        args
    }
}

impl FaultArgs {
    /// The settings that they make.
    pub fn settings(&self) -> FaultSettings {
        FaultSettings {
            loss: self.loss,
            loss_burst: self.loss_burst,
            corrupt: self.corrupt,
            duplicate: self.duplicate,
            reorder: self.reorder,
            delay_ms: self.delay,
            fault_seed: self.fault_seed,
        }
    }

    /// The same as command-line arguments, for `dogwild-rawbench`; each node gets its own seed.
    pub fn to_args(&self, node: u16) -> Vec<String> {
        let bursts = self.loss_burst.map(|bursts| {
            let BurstSettings { p, r, .. } = bursts;
            format!("{p},{r},{},{}", bursts.loss_bad, bursts.loss_good)
        });
        [
            ("--loss", self.loss.to_string()),
            ("--corrupt", self.corrupt.to_string()),
            ("--duplicate", self.duplicate.to_string()),
            ("--reorder", self.reorder.to_string()),
            ("--delay", self.delay.to_string()),
            (
                "--fault-seed",
                self.fault_seed.wrapping_add(u64::from(node)).to_string(),
            ),
        ]
        .into_iter()
        .chain(bursts.map(|bursts| ("--loss-burst", bursts)))
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

/// A model named on the command line: a built-in name or a solver prototxt.
pub fn model(name: &str) -> Result<SolverSpec, crate::solver::ModelError> {
    let is_builtin = SolverSpec::builtin_names().any(|builtin| builtin == name);
    // A word that is no path and no file was meant to be a built-in model.
    let is_word = !name.contains(['/', '.']) && !Path::new(name).exists();
    if is_builtin || is_word {
        SolverSpec::builtin(name)
    } else {
        SolverSpec::from_file(name)
    }
}

/// The session number of a job's name.
pub fn session(name: &str) -> u64 {
    session_number(name)
}

/// The same for what is kept in 32 bits.
pub fn share_f32(text: &str) -> Result<f32, String> {
    share(text).map(|share| share as f32)
}

/// A share, or a whole number above 1.
pub fn share_or_count(text: &str) -> Result<f64, String> {
    match text.parse::<u16>() {
        Ok(count @ 2..) => Ok(count.into()),
        _ => share(text),
    }
}

/// Steps per second, above 0.
pub fn steps_per_s(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(steps) if STEPS_PER_S.contains(&steps) => Ok(steps),
        _ => Err(format!(
            "`{text}` is not a number of steps per second: use 0.001 to 1000000, as 5"
        )),
    }
}

/// A time in seconds, above 0.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!(
            "`{text}` is not a time: write seconds, 0.01 to 86400"
        )),
    }
}

/// Takes the settings of [`FaultArgs::loss_burst`].
pub fn bursts(text: &str) -> Result<BurstSettings, String> {
    const USAGE: &str = "write P,R or P,R,BAD or P,R,BAD,GOOD";
    let mut values = [0.0, 0.0, 1.0, 0.0];
    let parts: Vec<&str> = text.split(',').collect();
    if !(2..=4).contains(&parts.len()) {
        return Err(format!("{USAGE}, each a share (0.01 or 1%)"));
    }
    for (value, part) in values.iter_mut().zip(parts) {
        *value = share(part.trim()).map_err(|wrong| format!("{wrong}; {USAGE}"))?;
    }
    let [p, r, loss_bad, loss_good] = values;
    Ok(BurstSettings {
        p,
        r,
        loss_bad,
        loss_good,
    })
}

fn delay_ms(text: &str) -> Result<f64, String> {
    let delay = text
        .parse::<f64>()
        .map_err(|_| format!("`{text}` is not a number of milliseconds"))?;
    if DELAY_MS.contains(&delay) {
        Ok(delay)
    } else {
        Err(format!("`{text}` is not between 0 and 10000 ms"))
    }
}

/// A number of bytes (per second) with its unit, or `max`.
pub fn rate(text: &str) -> Result<Rate, String> {
    if text == "max" {
        return Ok(Rate(None));
    }
    let bytes = bytes(text).map_err(|wrong| format!("{wrong}, or max"))?;
    if bytes >= BYTES_MIN {
        Ok(Rate(Some(bytes)))
    } else {
        Err(format!(
            "{bytes} bytes are too few: give 1kB or more, or max"
        ))
    }
}

/// A number of bytes with its unit, 0 or more.
pub fn bytes(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a number of bytes: write 64MB, 2GB, 500kB or 100Mbit");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "B" => 1.0,
        "k" | "K" | "kB" | "KB" => 1e3,
        "M" | "MB" => 1e6,
        "G" | "GB" => 1e9,
        "kbit" => 1e3 / 8.0,
        "Mbit" => 1e6 / 8.0,
        "Gbit" => 1e9 / 8.0,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<f64>().map_err(|_| wrong())? * scale;
    if bytes.is_finite() && bytes >= 0.0 {
        Ok(bytes)
    } else {
        Err(wrong())
    }
}

/// A share of the pictures, as `2/5`.
///
/// # Errors
/// It is none.
pub fn shard(text: &str) -> Result<Shard, String> {
    let parse = || {
        let (index, of) = text.split_once('/')?;
        let (index, of) = (index.parse().ok()?, of.parse().ok()?);
        (index < of).then_some(Shard { index, of })
    };
    parse()
        .ok_or_else(|| format!("`{text}` is not a share: write K/N with K from 0 to N - 1, as 2/5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_two_to_four_shares() {
        let line = |p, r, loss_bad, loss_good| {
            Ok(BurstSettings {
                p,
                r,
                loss_bad,
                loss_good,
            })
        };
        assert_eq!(bursts("0.01,0.3"), line(0.01, 0.3, 1.0, 0.0));
        assert_eq!(bursts("0.01, 0.3, 0.9, 0.1"), line(0.01, 0.3, 0.9, 0.1));
        assert_eq!(bursts("1%,50%"), line(0.01, 0.5, 1.0, 0.0));
        for wrong in ["", "0.1", "1,2", "0.1,x", "0,0,0,0,0", "NaN,1", "-1,1"] {
            assert!(bursts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(rate("max"), Ok(Rate(None)));
        assert_eq!(rate("64MB"), Ok(Rate(Some(64e6))));
        assert_eq!(rate("1.5G"), Ok(Rate(Some(1.5e9))));
        assert_eq!(rate("100Mbit"), Ok(Rate(Some(12.5e6))));
        for wrong in ["", "fast", "0", "-3MB", "5 apples", "inf", "1e400"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
