//! Chooses the interface and makes the two sockets of a node.
//!
//! Invariant: what `open` returns is ready for use; everything that can be wrong with the settings
//! or the host is an error before.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockFilter, Socket, Type};

use super::sys::{self, Buffer};
use super::{UdpConfig, UdpError};
use crate::iface::{self, Interface};

/// Largest packet by default: a common jumbo size, also where the interface would carry more.
const MTU_DEFAULT_MAX: usize = 9000;
/// Smallest packet that makes sense: what every IPv4 host takes (RFC 791).
const MTU_MIN: usize = 576;
/// Largest UDP payload of one frame.
const PAYLOAD_MAX: usize = 65_507;

/// The send buffer is this much smaller than the receive buffer: what waits in it grows old.
const SEND_BUFFER_SHARE: usize = 8;

/// What a node sends and receives with.
pub(super) struct Sockets {
    /// Sends everything, receives what is for this node.
    pub(super) node: Arc<Socket>,
    /// Receives what is for the group.
    pub(super) group: Socket,
    pub(super) group_address: SocketAddr,
    /// What `node` is bound to, and where other nodes may be.
    pub(super) own_address: SocketAddr,
    pub(super) seeds: Vec<SocketAddr>,
    pub(super) payload_max: usize,
    pub(super) segmentation: bool,
    /// Own group messages that the filter of the group socket drops; the kernel counts them as
    /// drops.
    pub(super) echoes: Arc<AtomicU64>,
    /// Whether own group messages come back at all.
    pub(super) has_echo: bool,
    pub(super) send_bytes: usize,
    pub(super) receive_bytes: usize,
}

/// Adds to an error what was tried.
fn tried<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, UdpError> {
    result.map_err(|source| UdpError::System {
        what: what.into(),
        source,
    })
}

pub(super) fn open(config: &UdpConfig) -> Result<Sockets, UdpError> {
    let group = config.group;
    if !group.ip().is_multicast() || group.port() == 0 {
        return Err(UdpError::NotMulticast { group });
    }
    let iface = choose_interface(config)?;
    if !iface.up {
        return Err(UdpError::Down { iface: iface.name });
    }
    let local = local_address(config, &iface)?;
    let payload_max = payload_max(config, &iface)?;
    let group = match group {
        SocketAddr::V6(v6) if v6.scope_id() == 0 => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, iface.index).into()
        }
        other => other,
    };

    if group.is_ipv6() {
        reach_v6(group, &iface)?;
    }
    let has_echo = iface.loopback || config.same_host;
    let node = node_socket(local, config.listen, &iface, has_echo)?;
    let own = tried("read the own address", node.local_addr())?
        .as_socket()
        .unwrap_or(local);
    let group_socket = group_socket(group, &iface)?;
    if has_echo {
        let filter = not_from(own);
        tried(
            "set a filter on the group socket",
            group_socket.attach_filter(&filter),
        )?;
    }

    let segmentation = config.segmentation
        && sys::can_segment(&node)
        && [&node, &group_socket]
            .into_iter()
            .all(|socket| sys::join_received(socket).is_ok());
    let bytes = config.buffer_bytes;
    let send = bytes / SEND_BUFFER_SHARE;
    let send_bytes = tried(
        "set the send buffer",
        sys::set_buffer(&node, Buffer::Send, send),
    )?;
    let mut receive_bytes = usize::MAX;
    for socket in [&node, &group_socket] {
        let granted = sys::set_buffer(socket, Buffer::Receive, bytes);
        receive_bytes = receive_bytes.min(tried("set the receive buffer", granted)?);
    }
    log::info!(
        "udp: {own} to group {group} on `{}`, {payload_max} bytes of payload, segmentation {}, \
         buffers of {send_bytes} and {receive_bytes} bytes",
        iface.name,
        if segmentation { "on" } else { "off" },
    );
    advise(receive_bytes, bytes);
    Ok(Sockets {
        node: Arc::new(node),
        group: group_socket,
        group_address: group,
        own_address: own,
        seeds: config.seeds.clone(),
        payload_max,
        segmentation,
        echoes: Arc::new(AtomicU64::new(0)),
        has_echo,
        send_bytes,
        receive_bytes,
    })
}

fn choose_interface(config: &UdpConfig) -> Result<Interface, UdpError> {
    if let Some(name) = &config.iface {
        return Ok(iface::find(name)?);
    }
    let all = iface::list();
    let local = match config.local {
        Some(local) => local,
        None => routed_address(config.group).ok_or_else(|| UdpError::NoRoute {
            group: config.group,
            existing: join(all.iter().map(|one| &one.name)),
        })?,
    };
    let existing = join(all.iter().flat_map(|one| &one.ips));
    all.into_iter()
        .find(|one| one.ips.contains(&local))
        .ok_or(UdpError::NoSuchAddress { local, existing })
}

fn join(items: impl Iterator<Item = impl ToString>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

/// The own address from which the kernel would send to the group, if any route leads there.
fn routed_address(group: SocketAddr) -> Option<IpAddr> {
    let socket = Socket::new(Domain::for_address(group), Type::DGRAM, None).ok()?;
    socket.connect(&group.into()).ok()?;
    Some(socket.local_addr().ok()?.as_socket()?.ip())
}

/// Unlike IPv4, IPv6 multicast needs a route even where the interface is named; loopback has none.
fn reach_v6(group: SocketAddr, iface: &Interface) -> Result<(), UdpError> {
    let name = &iface.name;
    let what = format!(
        "reach the group {group} (`sudo ip -6 route add ff00::/8 dev {name} table local` may help)"
    );
    let reached = Socket::new(Domain::IPV6, Type::DGRAM, None).and_then(|socket| {
        socket.set_multicast_if_v6(iface.index)?;
        socket.connect(&group.into())
    });
    tried(what, reached)
}

fn local_address(config: &UdpConfig, iface: &Interface) -> Result<SocketAddr, UdpError> {
    let v4 = config.group.is_ipv4();
    let ip = match config.local {
        Some(local) if iface.ips.contains(&local) && local.is_ipv4() == v4 => local,
        Some(local) => {
            return Err(UdpError::NoSuchAddress {
                local,
                existing: join(iface.ips.iter()),
            });
        }
        None => iface
            .ips
            .iter()
            .copied()
            .find(|ip| ip.is_ipv4() == v4)
            .ok_or_else(|| UdpError::NoAddress {
                iface: iface.name.clone(),
                family: if v4 { "IPv4" } else { "IPv6" },
            })?,
    };
    Ok(match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() {
                iface.index
            } else {
                0
            };
            SocketAddrV6::new(ip, 0, 0, scope).into()
        }
    })
}

fn payload_max(config: &UdpConfig, iface: &Interface) -> Result<usize, UdpError> {
    let mtu = config.mtu.unwrap_or(iface.mtu.min(MTU_DEFAULT_MAX));
    if mtu < MTU_MIN || mtu > iface.mtu {
        return Err(UdpError::Mtu {
            mtu,
            iface: iface.name.clone(),
            least: MTU_MIN,
            most: iface.mtu,
        });
    }
    let headers = if config.group.is_ipv4() {
        20 + 8
    } else {
        40 + 8
    };
    Ok((mtu - headers).min(PAYLOAD_MAX))
}

/// Says how to get the receive buffer that was asked for, if the kernel granted less.
fn advise(granted_bytes: usize, asked_bytes: usize) {
    if granted_bytes < asked_bytes {
        log::info!(
            "udp: the receive buffer is {granted_bytes} of {asked_bytes} bytes: for less loss, \
             `sudo sysctl net.core.rmem_max={asked_bytes}`"
        );
    }
}

fn node_socket(
    local: SocketAddr,
    listen: Option<u16>,
    iface: &Interface,
    echo: bool,
) -> Result<Socket, UdpError> {
    let domain = Domain::for_address(local);
    let socket = tried(
        "make a UDP socket",
        Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP)),
    )?;
    bind(&socket, local, listen)?;
    let (through, back) = match local.ip() {
        IpAddr::V4(ip) => (
            sys::set_multicast_interface_v4(&socket, ip, iface.index),
            socket.set_multicast_loop_v4(echo),
        ),
        IpAddr::V6(_) => (
            socket.set_multicast_if_v6(iface.index),
            socket.set_multicast_loop_v6(echo),
        ),
    };
    tried(format!("send multicast through `{}`", iface.name), through)?;
    tried("set whether multicast comes back", back)?;
    Ok(socket)
}

/// Binds to port `listen` if that is free (another node of this host may have it), else to any.
fn bind(socket: &Socket, local: SocketAddr, listen: Option<u16>) -> Result<(), UdpError> {
    if let Some(port) = listen {
        let mut wanted = local;
        wanted.set_port(port);
        match socket.bind(&wanted.into()) {
            Ok(()) => return Ok(()),
            Err(error) => log::debug!("udp: {wanted} is taken ({error}): another port"),
        }
    }
    tried(format!("bind to {local}"), socket.bind(&local.into()))
}

fn group_socket(group: SocketAddr, iface: &Interface) -> Result<Socket, UdpError> {
    let domain = Domain::for_address(group);
    let socket = tried(
        "make a UDP socket",
        Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP)),
    )?;
    // So that several nodes of one host can be in the group.
    tried("share the group's port", socket.set_reuse_address(true))?;
    if group.is_ipv6() {
        tried("keep IPv4 out", socket.set_only_v6(true))?;
    }
    // Bound to the group's address, the socket receives nothing else.
    tried(
        format!("bind to the group {group}"),
        socket.bind(&group.into()),
    )?;
    let joined = match group.ip() {
        IpAddr::V4(ip) => {
            // Without this, what any other program has joined elsewhere would be received too.
            tried("limit the group socket", socket.set_multicast_all_v4(false))?;
            socket.join_multicast_v4_n(&ip, &InterfaceIndexOrAddress::Index(iface.index))
        }
        IpAddr::V6(ip) => socket.join_multicast_v6(&ip, iface.index),
    };
    tried(
        format!("join the group {group} on `{}`", iface.name),
        joined,
    )?;
    Ok(socket)
}

/// A classic BPF program that drops what comes from this address and port, and accepts all else.
///
/// For a UDP socket the packet begins at the UDP header; the IP header is reached through
/// `SKF_NET_OFF` (kernel: `Documentation/networking/filter.rst`).
fn not_from(own: SocketAddr) -> Vec<SockFilter> {
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let network = libc::SKF_NET_OFF.cast_unsigned();
    let words = |ip: &[u8]| -> Vec<u32> {
        ip.chunks_exact(4)
            .map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
            .collect()
    };
    let (source_offset, source) = match own.ip() {
        IpAddr::V4(ip) => (12, words(&Ipv4Addr::octets(&ip))),
        IpAddr::V6(ip) => (8, words(&Ipv6Addr::octets(&ip))),
    };
    let mut tests = vec![(LOAD_HALF, 0, u32::from(own.port()))];
    for (i, word) in source.iter().enumerate() {
        tests.push((LOAD_WORD, network + source_offset + 4 * i as u32, *word));
    }
    let mut program = Vec::new();
    for (i, (load, at, value)) in tests.iter().enumerate() {
        // On a difference: over the remaining tests and the "drop" to the "accept".
        let skip = 2 * (tests.len() - 1 - i) + 1;
        program.push(SockFilter::new(*load, 0, 0, *at));
        program.push(SockFilter::new(JUMP_EQUAL, 0, skip as u8, *value));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    program
}
