//! Opens the transport that the user named, with everything derived that can be.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use dogwild_net::{
    Link, Source, af_xdp, capture, fault, iface, pace, packet_mmap, seal, udp, verbs,
};
use serde::{Deserialize, Serialize};

use super::job_group;
use super::seeds::{JoinError, local_for, resolve};

/// The transports of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// IP multicast and unicast; needs no privilege.
    Udp,
    /// Raw Ethernet through kernel rings; needs CAP_NET_RAW.
    PacketMmap,
    /// Raw Ethernet through rings shared with the driver; needs CAP_NET_RAW, CAP_NET_ADMIN and
    /// CAP_BPF.
    AfXdp,
    /// Raw Ethernet, af_xdp to send and packet_mmap to receive; needs CAP_NET_RAW.
    XdpMmap,
    /// Datagrams of InfiniBand or RoCE v2; needs an RDMA device and libibverbs.
    Verbs,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Udp,
        Self::PacketMmap,
        Self::AfXdp,
        Self::XdpMmap,
        Self::Verbs,
    ];

    /// Whether it is raw Ethernet, which goes through one interface that has to be named.
    pub fn is_raw(self) -> bool {
        !matches!(self, Self::Udp | Self::Verbs)
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::PacketMmap => "packet_mmap",
            Self::AfXdp => "af_xdp",
            Self::XdpMmap => "xdp_mmap",
            Self::Verbs => "verbs",
        }
    }

    /// What an interface has to have for it.
    pub fn need(self) -> iface::Need {
        match self {
            Self::Udp | Self::Verbs => iface::Need::Ipv4,
            _ => iface::Need::Ethernet,
        }
    }
}

/// What to open.
#[derive(Clone, Debug)]
pub struct TransportSpec {
    /// Which transport.
    pub transport: Transport,
    /// Network interface (verbs: or RDMA device, or device:port); udp can do without (loopback),
    /// and verbs where one port is active; `auto` chooses one ([`TransportSpec::resolved`]).
    pub iface: Option<String>,
    /// MTU of the link, bytes (IP packet size; raw Ethernet payload); default: what the interface
    /// has, at most 9000.
    pub mtu: Option<usize>,
    /// Segmentation offload for udp. Off where emulated loss is to hit single frames.
    pub segmentation: bool,
    /// Port of the udp group, and of this node at its own address; default: from the session.
    pub port: Option<u16>,
    /// Where to ask for the other nodes if multicast does not reach them (udp): hosts of any nodes,
    /// with or without a port.
    pub join: Vec<String>,
    /// What to do to received frames on purpose.
    pub fault: fault::FaultConfig,
    /// What else is around the link.
    pub wrap: Wrappers,
}

/// What is put around a link, in the order that `dogwild_net` gives.
#[derive(Clone, Debug, Default)]
pub struct Wrappers {
    /// The key to seal frames with.
    pub key_file: Option<PathBuf>,
    /// Where to remember which sealed frames have been taken, so that a process that starts again
    /// does not take them once more. None: in the process.
    pub replay_windows: Option<PathBuf>,
    /// Where to write what is sent and received.
    pub capture: Option<PathBuf>,
    /// Bytes per second that may leave, headers included.
    pub pace_bytes_per_s: Option<f64>,
}

/// Size of a capture file at most, bytes.
const CAPTURE_BYTES_MAX: u64 = 1 << 30;

/// Why a transport could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The udp transport says why.
    #[error(transparent)]
    Udp(#[from] udp::UdpError),
    /// An address to join at cannot be used.
    #[error("{0}")]
    Join(#[from] JoinError),
    /// The raw Ethernet transport says why.
    #[error(transparent)]
    PacketMmap(#[from] packet_mmap::PacketMmapError),
    /// The AF_XDP transport says why.
    #[error(transparent)]
    AfXdp(#[from] af_xdp::AfXdpError),
    /// The verbs transport says why.
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsError),
    /// The key file says why.
    #[error(transparent)]
    Key(#[from] seal::KeyError),
    /// The memory of taken frames says why.
    #[error(transparent)]
    Replay(#[from] seal::ReplayError),
    /// No memory for it.
    #[error("no memory for the windows of sealed frames: {0}")]
    Memory(std::io::Error),
    /// No random number for the link.
    #[error(
        "the system gives no random number, and a sealed link needs one: {0}; see whether `head -c 8 /dev/urandom` works"
    )]
    Random(std::io::Error),
    /// The capture file says why.
    #[error(transparent)]
    Capture(#[from] capture::CaptureError),
    /// Raw Ethernet goes through one interface, which has to be named.
    #[error("{} needs an interface: name one, or auto (`ip link` lists them)", .0.name())]
    NoInterface(Transport),
    /// The choice among interfaces found none, or too many.
    #[error("{0}")]
    Auto(#[from] iface::ChooseError),
}

/// The name that asks for a choice.
const AUTO: &str = "auto";

impl TransportSpec {
    /// `transport` on `iface`, everything else as by default.
    pub fn of(transport: Transport, iface: Option<String>) -> Self {
        Self {
            transport,
            iface,
            mtu: None,
            segmentation: true,
            port: None,
            join: Vec::new(),
            fault: fault::FaultConfig::default(),
            wrap: Wrappers::default(),
        }
    }

    /// MTU of the link as it will be opened: what is asked for, else the interface's, as far as the
    /// transport takes it. `None`: only the adapter knows.
    pub fn link_mtu(&self) -> Option<usize> {
        let most = match self.transport {
            Transport::Udp | Transport::PacketMmap => 9000,
            Transport::AfXdp | Transport::XdpMmap => af_xdp::MTU_MAX,
            Transport::Verbs => return self.mtu,
        };
        let spec = self.resolved().ok()?;
        let name = spec.iface.as_deref().unwrap_or("lo");
        let found = iface::list().into_iter().find(|one| one.name == name);
        let found = found.map(|one| one.mtu.min(most));
        self.mtu.or(found)
    }

    /// Whether frames go where others might be.
    pub fn leaves_the_host(&self) -> bool {
        self.transport != Transport::Udp
            || match &self.iface {
                Some(name) => name != "lo",
                None => !self.join.is_empty(),
            }
    }

    /// The same with `--iface auto` replaced by the interface it stands for; the log says why. With
    /// an address to join at, and no interface, it is the one through which that is reached.
    pub fn resolved(&self) -> Result<Self, TransportError> {
        let mut spec = self.clone();
        if self.transport == Transport::Verbs {
            // A device has interfaces, an interface has a device: the port is what is meant.
            let port = verbs::find(self.iface.as_deref().filter(|name| *name != AUTO))?;
            spec.iface = Some(format!("{}:{}", port.device, port.number));
        } else if self.iface.as_deref() == Some(AUTO) {
            let choice = iface::choose(self.transport.need())?;
            log::info!("--iface auto: `{}`, {}", choice.iface.name, choice.why);
            for (name, reason) in choice.others {
                log::debug!("--iface auto: not `{name}`: {reason}");
            }
            spec.iface = Some(choice.iface.name);
        } else if let (None, Some(text)) = (&spec.iface, spec.join.first()) {
            let seed = resolve(text, 0)?;
            let found = iface::with_address(local_for(seed)?);
            spec.iface = found.map(|one| one.name);
        }
        Ok(spec)
    }
}

/// Opens the link of one node.
pub fn open_link(spec: &TransportSpec, session: u64) -> Result<Link, TransportError> {
    let spec = &spec.resolved()?;
    let (group, mac) = job_group(session, spec.port);
    // Before anything is opened: a key that is refused is the commonest reason to stop here.
    let key = spec.wrap.key_file.as_ref().map(seal::Key::from_file);
    let key = key.transpose()?;
    let link = match spec.transport {
        Transport::Udp => udp::open(&udp_config(spec, group)?)?,
        Transport::PacketMmap => packet_mmap::open(&ring_config(spec, mac)?)?,
        Transport::AfXdp => af_xdp::open(&xdp_config(spec, mac)?)?,
        Transport::Verbs => verbs::open(&verbs_config(spec, group, session))?,
        Transport::XdpMmap => Link {
            tx: af_xdp::open_transmit(&xdp_config(spec, mac)?)?,
            rx: packet_mmap::open_receive(&ring_config(spec, mac)?)?,
        },
    };
    wrap(link, spec, key, group, mac)
}

fn udp_config(spec: &TransportSpec, group: SocketAddr) -> Result<udp::UdpConfig, TransportError> {
    let seeds = spec.join.iter().map(|text| resolve(text, group.port()));
    let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
    // A seed of this host is where this node is to be found, if no other has that port.
    let own = seeds
        .iter()
        .find(|seed| iface::with_address(seed.ip()).is_some());
    let listen = match own {
        Some(seed) => Some(seed.port()),
        None => spec.leaves_the_host().then_some(group.port()),
    };
    Ok(udp::UdpConfig {
        group,
        // Without an interface the nodes are processes of this host.
        iface: Some(spec.iface.clone().unwrap_or_else(|| "lo".into())),
        listen,
        seeds,
        mtu: spec.mtu,
        segmentation: spec.segmentation,
        ..udp::UdpConfig::default()
    })
}

/// The wrappers that are asked for.
fn wrap(
    mut link: Link,
    spec: &TransportSpec,
    key: Option<seal::Key>,
    group: SocketAddr,
    mac: [u8; 6],
) -> Result<Link, TransportError> {
    // Datagrams of verbs are captured as frames too: their own headers are the adapter's.
    let raw = spec.transport != Transport::Udp;
    if let Some(path) = &spec.wrap.capture {
        let (local, group) = if raw {
            (Source::Mac([0; 6]), Source::Mac(mac))
        } else {
            // Our own address is not known here; frames carry the group's port on one side.
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), group.port());
            (Source::Socket(any), Source::Socket(group))
        };
        let config = capture::CaptureConfig {
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
    if let Some(key) = key {
        let windows = match &spec.wrap.replay_windows {
            Some(path) => seal::ReplayWindows::in_file(path, &key)?,
            None => seal::ReplayWindows::in_memory().map_err(TransportError::Memory)?,
        };
        let config = seal::SealConfig { key, windows };
        link = seal::wrap(link, config).map_err(TransportError::Random)?;
    }
    if let Some(bytes_per_s) = spec.wrap.pace_bytes_per_s {
        let config = pace::PaceConfig {
            bytes_per_s,
            overhead_bytes: match spec.transport {
                Transport::Udp => pace::UDP_OVERHEAD_BYTES,
                Transport::Verbs => pace::ETHERNET_OVERHEAD_BYTES + verbs::ROCE_HEADERS_BYTES,
                _ => pace::ETHERNET_OVERHEAD_BYTES,
            },
            ..pace::PaceConfig::default()
        };
        link = pace::wrap(link, &config);
    }
    Ok(link)
}

fn iface(spec: &TransportSpec) -> Result<String, TransportError> {
    let named = spec.iface.clone();
    named.ok_or(TransportError::NoInterface(spec.transport))
}

fn ring_config(
    spec: &TransportSpec,
    group: [u8; 6],
) -> Result<packet_mmap::PacketMmapConfig, TransportError> {
    Ok(packet_mmap::PacketMmapConfig {
        iface: iface(spec)?,
        group,
        mtu: spec.mtu,
        ..packet_mmap::PacketMmapConfig::default()
    })
}

fn xdp_config(spec: &TransportSpec, group: [u8; 6]) -> Result<af_xdp::AfXdpConfig, TransportError> {
    Ok(af_xdp::AfXdpConfig {
        iface: iface(spec)?,
        group,
        mtu: spec.mtu,
        ..af_xdp::AfXdpConfig::default()
    })
}

fn verbs_config(spec: &TransportSpec, group: SocketAddr, session: u64) -> verbs::VerbsConfig {
    let mut config = verbs::VerbsConfig {
        port: spec.iface.clone(),
        mtu: spec.mtu,
        // The low half: the group has bits of it too, a key that differs is refused by the adapter.
        key: session as u32,
        ..verbs::VerbsConfig::default()
    };
    if let IpAddr::V4(ip) = group.ip() {
        config.group = ip;
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_becomes_a_name_and_names_stay() {
        let named = TransportSpec::of(Transport::Udp, Some("eth77".into()));
        let resolved = named.resolved().expect("a name is not looked up");
        assert_eq!(resolved.iface.as_deref(), Some("eth77"));
        let auto = TransportSpec::of(Transport::Udp, Some(AUTO.into()));
        match auto.resolved() {
            Ok(spec) => assert_ne!(spec.iface.as_deref(), Some(AUTO)),
            Err(error) => assert!(matches!(error, TransportError::Auto(_)), "{error}"),
        }
    }
}
