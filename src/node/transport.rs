//! Opens the transport that the user named, with everything derived that can be.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use dogwild_net::{Link, Source, capture, fault, packet_mmap, seal, udp};

/// The transports of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Transport {
    /// IP multicast and unicast; needs no privilege.
    Udp,
    /// Raw Ethernet through kernel rings; needs CAP_NET_RAW.
    PacketMmap,
}

impl Transport {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::PacketMmap => "packet_mmap",
        }
    }
}

/// What to open.
#[derive(Clone, Debug)]
pub struct TransportSpec {
    /// Which transport.
    pub transport: Transport,
    /// Network interface; udp can do without (loopback).
    pub iface: Option<String>,
    /// MTU of the link, bytes (IP packet size; raw Ethernet payload); default: what the interface has, at most 9000.
    pub mtu: Option<usize>,
    /// Segmentation offload for udp. Off where emulated loss is to hit single frames.
    pub segmentation: bool,
    /// Port of the udp group; default: from the session.
    pub port: Option<u16>,
    /// What to do to received frames on purpose.
    pub fault: fault::Config,
    /// What else is around the link.
    pub wrap: Wrappers,
}

/// Wrappers that are named by a file.
#[derive(Clone, Debug, Default)]
pub struct Wrappers {
    /// The key to seal frames with.
    pub key_file: Option<PathBuf>,
    /// Where to write what is sent and received.
    pub capture: Option<PathBuf>,
}

/// Size of a capture file at most, bytes.
const CAPTURE_BYTES_MAX: u64 = 1 << 30;

/// Why a transport could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The udp transport says why.
    #[error(transparent)]
    Udp(#[from] udp::OpenError),
    /// The raw Ethernet transport says why.
    #[error(transparent)]
    PacketMmap(#[from] packet_mmap::OpenError),
    /// The key file says why.
    #[error(transparent)]
    Key(#[from] seal::KeyError),
    /// The capture file says why.
    #[error(transparent)]
    Capture(#[from] capture::OpenError),
    /// Raw Ethernet goes through one interface, which has to be named.
    #[error("--transport packet_mmap needs --iface NAME (`ip link` lists them)")]
    NoInterface,
}

/// The multicast groups of a session: IP address and port, Ethernet address. Jobs with different
/// sessions do not disturb each other on one network.
pub fn job_group(session: u64, port: Option<u16>) -> (SocketAddr, [u8; 6]) {
    let [a, b, c, d, ..] = session.to_le_bytes();
    // 239.0.0.0/8 is administratively scoped (RFC 2365); ports from 22340 ("DW") on.
    let ip = IpAddr::V4(Ipv4Addr::new(239, 68, a, b));
    let port = port.unwrap_or(22_340 + u16::from(c) % 200);
    // Bit 0 of the first octet: multicast; bit 1: locally administered.
    (SocketAddr::new(ip, port), [0x03, 0x44, 0x57, a, b, d])
}

/// Opens the link of one node.
pub fn open_link(spec: &TransportSpec, session: u64) -> Result<Link, TransportError> {
    let (group, mac) = job_group(session, spec.port);
    // Before anything is opened: a key that is refused is the commonest reason to stop here.
    let key = spec.wrap.key_file.as_ref().map(seal::Key::from_file);
    let key = key.transpose()?;
    let mut link = match spec.transport {
        Transport::Udp => udp::open(&udp::Config {
            group,
            // Without an interface the nodes are processes of this host.
            iface: Some(spec.iface.clone().unwrap_or_else(|| "lo".into())),
            mtu: spec.mtu,
            segmentation: spec.segmentation,
            ..udp::Config::default()
        })?,
        Transport::PacketMmap => packet_mmap::open(&packet_mmap::Config {
            iface: spec.iface.clone().ok_or(TransportError::NoInterface)?,
            group: mac,
            mtu: spec.mtu,
            ..packet_mmap::Config::default()
        })?,
    };
    if let Some(path) = &spec.wrap.capture {
        let (local, group) = match spec.transport {
            // Our own address is not known here; frames carry the group's port on one side.
            Transport::Udp => (
                Source::Socket(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), group.port())),
                Source::Socket(group),
            ),
            Transport::PacketMmap => (Source::Mac([0; 6]), Source::Mac(mac)),
        };
        let config = capture::Config {
            path: path.clone(),
            bytes_max: CAPTURE_BYTES_MAX,
            local,
            group,
        };
        link = capture::wrap(link, &config)?;
    }
    if !spec.fault.is_harmless() {
        link = fault::wrap(link, &spec.fault);
    }
    match key {
        Some(key) => link = seal::wrap(link, &seal::Config { key }),
        None if spec.iface.as_deref().is_some_and(|name| name != "lo") => log::warn!(
            "frames are not authenticated: anybody on the link can change the weights; --key-file seals them"
        ),
        None => {}
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_multicast_and_differ_by_session() {
        let (ip, mac) = job_group(0x0102_0304_0506_0708, None);
        assert!(ip.ip().is_multicast());
        assert_eq!(mac[0] & 3, 3);
        assert_ne!(job_group(1, None), job_group(2, None));
        assert_eq!(job_group(1, Some(5)).0.port(), 5);
    }
}
