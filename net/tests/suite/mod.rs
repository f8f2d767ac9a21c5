//! What the checks run on: a number of nodes on one transport, and frames that tell whether they
//! are whole.

pub(crate) mod checks;
mod ports;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use dogwild_net::{
    Link, Receive, Source, To, Transmit, af_xdp, capture, fault, memory, pace, packet_mmap, seal,
    udp, verbs,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// How long a line has to be silent before frames that are still missing count as lost.
const QUIET: Duration = Duration::from_secs(2);

enum TransportKind {
    Memory,
    Udp(udp::UdpConfig),
    PacketMmap,
    AfXdp(af_xdp::AfXdpConfig),
    /// af_xdp transmit, packet_mmap receive.
    XdpMmap,
    /// A port for each node, or one for all.
    Verbs(Vec<verbs::VerbsConfig>),
}

pub(crate) use ports::rdma_ports;

/// What is around every link.
#[derive(Clone, Copy)]
pub(crate) enum Wrapping {
    None,
    Fault,
    Capture,
    Seal,
    Pace,
    All,
}

fn capture(link: Link) -> Link {
    // The name is gone at once, the file when the link is.
    let file = tempfile::NamedTempFile::new().expect("a file");
    let nobody = Source::Memory(0);
    let config = capture::CaptureConfig {
        path: file.path().to_owned(),
        bytes_max: 1 << 20,
        local: nobody,
        group: nobody,
    };
    capture::wrap(link, &config).expect("capture")
}

fn seal(link: Link) -> Link {
    let config = seal::SealConfig {
        key: seal::Key::new(&[7; seal::KEY_BYTES]),
        windows: seal::ReplayWindows::in_memory().expect("memory"),
    };
    seal::wrap(link, config).expect("a random number")
}

fn pace(link: Link) -> Link {
    // Tokens for all that a check sends at once.
    let config = pace::PaceConfig {
        bytes_per_s: 1e12,
        burst_bytes: 1 << 30,
        ..pace::PaceConfig::default()
    };
    pace::wrap(link, &config)
}

/// Some nodes that can be opened on one transport.
pub(crate) struct Net {
    pub(crate) nodes: usize,
    kind: TransportKind,
    lab: Option<Lab>,
    wrapping: Wrapping,
}

impl Net {
    pub(crate) fn memory(nodes: usize) -> Self {
        Net {
            nodes,
            kind: TransportKind::Memory,
            lab: None,
            wrapping: Wrapping::None,
        }
    }

    /// Every call takes a group of its own: tests run side by side on one loopback.
    pub(crate) fn udp_loopback(nodes: usize, segmentation: bool) -> Self {
        static GROUPS: AtomicU16 = AtomicU16::new(0);
        let group = GROUPS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let [_, _, p0, p1] = process::id().to_be_bytes();
        let port = 20_000 + (u16::from_be_bytes([p0, p1]) % 8192);
        let config = udp::UdpConfig {
            group: SocketAddr::from(([239, 68, group[0], group[1]], port)),
            iface: Some("lo".to_owned()),
            segmentation,
            ..udp::UdpConfig::default()
        };
        Net {
            nodes,
            kind: TransportKind::Udp(config),
            lab: None,
            wrapping: Wrapping::None,
        }
    }

    pub(crate) fn udp_lab(nodes: usize, segmentation: bool) -> Self {
        let config = udp::UdpConfig {
            iface: Some("eth0".to_owned()),
            segmentation,
            ..udp::UdpConfig::default()
        };
        Net {
            nodes,
            kind: TransportKind::Udp(config),
            lab: Some(lab(nodes, 1500)),
            wrapping: Wrapping::None,
        }
    }

    pub(crate) fn packet_mmap_lab(nodes: usize, mtu: u32) -> Self {
        Net {
            nodes,
            kind: TransportKind::PacketMmap,
            lab: Some(lab(nodes, mtu)),
            wrapping: Wrapping::None,
        }
    }

    pub(crate) fn af_xdp_lab(nodes: usize, mtu: u32) -> Self {
        Net {
            nodes,
            kind: TransportKind::AfXdp(af_xdp::AfXdpConfig::default()),
            lab: Some(lab(nodes, mtu)),
            wrapping: Wrapping::None,
        }
    }

    /// The program in the kernel, as for drivers that take none.
    pub(crate) fn af_xdp_generic_lab(nodes: usize) -> Self {
        let config = af_xdp::AfXdpConfig {
            driver_mode: false,
            ..af_xdp::AfXdpConfig::default()
        };
        Net {
            kind: TransportKind::AfXdp(config),
            ..Self::af_xdp_lab(nodes, 1500)
        }
    }

    pub(crate) fn xdp_mmap_lab(nodes: usize, mtu: u32) -> Self {
        Net {
            kind: TransportKind::XdpMmap,
            ..Self::packet_mmap_lab(nodes, mtu)
        }
    }

    /// Every node on a port of its own, of those that [`rdma_ports`] found; a single one serves
    /// all.
    pub(crate) fn verbs(nodes: usize, ports: &[String]) -> Self {
        static GROUPS: AtomicU16 = AtomicU16::new(0);
        let [_, _, p0, p1] = process::id().to_be_bytes();
        let [g0, g1] = GROUPS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let config = |node: usize| verbs::VerbsConfig {
            port: Some(ports[node % ports.len()].clone()),
            group: Ipv4Addr::new(239, 68, g0, g1),
            key: u32::from_be_bytes([0x44, 0x57, p0, p1]),
            ..verbs::VerbsConfig::default()
        };
        Net {
            nodes,
            kind: TransportKind::Verbs((0..nodes).map(config).collect()),
            lab: None,
            wrapping: Wrapping::None,
        }
    }

    /// The same nodes, with a wrapper that changes nothing around every link.
    pub(crate) fn under(mut self, wrapping: Wrapping) -> Self {
        self.wrapping = wrapping;
        self
    }

    /// Frames of a check that sends `plain` of them where no wrapper is between: each wrapper meets
    /// many transports, and the rest of them is what passed without it.
    pub(crate) fn frames(&self, plain: u64) -> u64 {
        match self.wrapping {
            Wrapping::None => plain,
            _ => plain / 4,
        }
    }

    /// Opens all nodes.
    pub(crate) fn open(&self) -> Vec<Link> {
        match self.kind {
            TransportKind::Memory => memory::Hub::new(self.nodes as u16, 1500, 1024)
                .into_iter()
                .map(|link| self.wrap(link))
                .collect(),
            _ => (0..self.nodes)
                .map(|node| self.open_one(node).expect("a network"))
                .collect(),
        }
    }

    /// Opens one node, again if need be; `None` where nodes exist only together.
    pub(crate) fn open_one(&self, node: usize) -> Option<Link> {
        let open = || match &self.kind {
            TransportKind::Memory => None,
            TransportKind::Udp(config) => Some(udp::open(config).expect("udp")),
            TransportKind::PacketMmap => Some(
                packet_mmap::open(&packet_mmap::PacketMmapConfig::default()).expect("packet_mmap"),
            ),
            TransportKind::AfXdp(config) => Some(af_xdp::open(config).expect("af_xdp")),
            TransportKind::XdpMmap => Some(xdp_mmap()),
            TransportKind::Verbs(configs) => Some(verbs::open(&configs[node]).expect("verbs")),
        };
        let link = match &self.lab {
            Some(lab) => lab.in_host(node, open).expect("enter the host"),
            None => open(),
        };
        link.map(|link| self.wrap(link))
    }

    fn wrap(&self, link: Link) -> Link {
        match self.wrapping {
            Wrapping::None => link,
            Wrapping::Fault => fault::wrap(link, &fault::FaultConfig::default()),
            Wrapping::Capture => capture(link),
            Wrapping::Seal => seal(link),
            Wrapping::Pace => pace(link),
            // In the order that the crate's documentation gives.
            Wrapping::All => pace(seal(fault::wrap(
                capture(link),
                &fault::FaultConfig::default(),
            ))),
        }
    }

    /// Switches the interface of a node; false where there is none of its own.
    pub(crate) fn switch(&self, node: usize, state: &str) -> bool {
        let (mut command, iface) = match (&self.lab, &self.kind) {
            (Some(lab), _) => (lab.command(node, "ip"), "eth0".to_owned()),
            (None, TransportKind::Verbs(configs)) => match interface_of(&configs[node]) {
                Some(iface) => (Command::new("ip"), iface),
                None => return false,
            },
            _ => return false,
        };
        let status = command.args(["link", "set", &iface, state]).status();
        let status = status.expect("run ip");
        assert!(status.success(), "ip link set {iface} {state}: {status}");
        true
    }

    /// Whether frames that overrun a receiver are counted at all.
    pub(crate) fn counts_overruns(&self) -> bool {
        !matches!(self.kind, TransportKind::Verbs(_))
    }

    /// Whether the drops that the kernel counts are frames (and not joined frames).
    pub(crate) fn counts_single_drops(&self) -> bool {
        !matches!(&self.kind, TransportKind::Udp(config) if config.segmentation)
    }

    /// Whether a frame that finds the queue to the other host full counts as the sender's.
    pub(crate) fn sees_drops_on_the_way(&self) -> bool {
        matches!(self.kind, TransportKind::AfXdp(_) | TransportKind::XdpMmap)
    }

    /// Whether a switch between the nodes may lose a frame in its own queues, where neither end can
    /// count it: several full-speed raw senders overrun a bridge.
    pub(crate) fn switch_may_drop(&self) -> bool {
        self.nodes > 2 && !matches!(self.kind, TransportKind::Memory | TransportKind::Udp(_))
    }

    /// Whether a sender can fill everything up to the receiver, which then stops it; none: a device
    /// that sends by itself may be slower than its sender, or not.
    pub(crate) fn has_back_pressure(&self) -> Option<bool> {
        match self.kind {
            TransportKind::Verbs(_) => None,
            TransportKind::Memory => Some(true),
            _ => Some(false),
        }
    }
}

/// The two raw Ethernet transports, a half of each.
fn xdp_mmap() -> Link {
    Link {
        tx: af_xdp::open_transmit(&af_xdp::AfXdpConfig::default()).expect("af_xdp transmit"),
        rx: packet_mmap::open_receive(&packet_mmap::PacketMmapConfig::default())
            .expect("packet_mmap receive"),
    }
}

/// Whether this process may load XDP programs; skips if not.
pub(crate) fn may_load_programs() -> bool {
    let lab = lab(2, 1500);
    let opened = lab.in_host(0, || {
        af_xdp::open_receive(&af_xdp::AfXdpConfig::default()).map(drop)
    });
    match opened.expect("enter the host") {
        Err(
            error @ (af_xdp::AfXdpError::NoPrivilege { .. } | af_xdp::AfXdpError::NoKernelSupport),
        ) => {
            dogwild_lab::skip::skip(&error.to_string());
            false
        }
        other => {
            other.expect("af_xdp");
            true
        }
    }
}

/// Interfaces that tests may switch off and on, by name with commas: those of the machine that
/// `tools/soft-roce` boots. A developer's own network is left alone.
const SWITCHABLE: &str = "DOGWILD_VERBS_SWITCH";

fn interface_of(config: &verbs::VerbsConfig) -> Option<String> {
    let allowed = std::env::var(SWITCHABLE).ok()?;
    let ports = verbs::ports().expect("ports");
    let named =
        |port: &verbs::Port| Some(format!("{}:{}", port.device, port.number)) == config.port;
    let mut interfaces = ports.into_iter().find(named)?.interfaces.into_iter();
    interfaces.find(|iface| allowed.split(',').any(|name| name == iface))
}

/// Some nodes on the first `ports` RDMA ports.
pub(crate) fn verbs_net(nodes: usize, ports: usize) -> Net {
    let found = rdma_ports(ports).expect("ports, as just found");
    Net::verbs(nodes, &found[..ports])
}

fn lab(nodes: usize, mtu: u32) -> Lab {
    Lab::up(&Spec {
        mtu,
        ..Spec::of(nodes)
    })
    .expect("a lab")
}

/// A frame whose first eight bytes tell all the others, and how many they are.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    seed: u64,
}

impl Sample {
    pub(crate) const SHORTEST: usize = 8;

    /// The length is taken from the seed...
    pub(crate) fn random(number: u64) -> Self {
        Sample {
            seed: number << 1 | 1,
        }
    }

    /// ... or is the longest.
    pub(crate) fn longest(number: u64) -> Self {
        Sample { seed: number << 1 }
    }

    pub(crate) fn len(self, mtu: usize) -> usize {
        if self.seed & 1 == 0 {
            return mtu;
        }
        Xoshiro256PlusPlus::seed_from_u64(self.seed).random_range(Self::SHORTEST..=mtu)
    }

    fn content(self) -> impl Rng {
        Xoshiro256PlusPlus::seed_from_u64(!self.seed)
    }

    pub(crate) fn write(self, slot: &mut [u8]) {
        let (head, tail) = slot.split_at_mut(Self::SHORTEST);
        head.copy_from_slice(&self.seed.to_le_bytes());
        self.content().fill_bytes(tail);
    }

    /// The number of the frame, after a look at every byte.
    pub(crate) fn check(frame: &[u8], mtu: usize) -> u64 {
        let head = frame.first_chunk().expect("at least eight bytes");
        let sample = Sample {
            seed: u64::from_le_bytes(*head),
        };
        let len = sample.len(mtu);
        assert!(
            frame.len() >= len,
            "frame of {} bytes, not {len}",
            frame.len()
        );
        let mut wanted = vec![0; len];
        sample.write(&mut wanted);
        assert!(
            frame[..len] == wanted,
            "frame {} is damaged",
            sample.seed >> 1
        );
        sample.seed >> 1
    }
}

/// Sends bytes, which must find a slot.
pub(crate) fn send(tx: &mut dyn Transmit, to: To, bytes: &[u8]) {
    assert!(
        tx.send(to, bytes.len(), &mut |slot| slot.copy_from_slice(bytes)),
        "no slot for {} bytes: {:?}",
        bytes.len(),
        tx.stats()
    );
}

/// Receives frames until there are `count` or the line is quiet.
pub(crate) fn collect(rx: &mut dyn Receive, count: usize) -> Vec<(Source, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut add = |source, frame: &[u8]| frames.push((source, frame.to_vec()));
    receive(rx, count, &mut add);
    frames
}

/// Lends frames until there were `count` or the line is quiet; returns how many there were.
pub(crate) fn receive(
    rx: &mut dyn Receive,
    count: usize,
    each: &mut dyn FnMut(Source, &[u8]),
) -> usize {
    let mut got = 0;
    while got < count {
        // An odd number, so that batches are cut at all places.
        let now = rx.recv(61, each).expect("receive");
        got += now;
        if now == 0 && !rx.wait(QUIET).expect("wait") {
            break;
        }
    }
    got
}

/// Nothing comes, for a little while.
pub(crate) fn nothing_comes(rx: &mut dyn Receive) {
    let mut seen = Vec::new();
    rx.wait(Duration::from_millis(50)).expect("wait");
    rx.recv(usize::MAX, &mut |source, frame| {
        seen.push((source, frame.len()))
    })
    .expect("receive");
    assert!(seen.is_empty(), "nothing was to come, but: {seen:?}");
}

/// Tells all nodes the address of `node`, as the layer above would after a valid frame.
pub(crate) fn introduce(links: &mut [Link], node: usize) {
    send(&mut *links[node].tx, To::Group, b"introduction");
    links[node].tx.flush().expect("flush");
    for (other, link) in links.iter_mut().enumerate() {
        if other != node {
            let frames = collect(&mut *link.rx, 1);
            assert_eq!(frames.len(), 1, "no introduction of {node} at {other}");
            link.tx.learn(node as u16, frames[0].0);
        }
    }
}
