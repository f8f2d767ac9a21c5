//! The `udp` transport: IP multicast to the group, unicast to nodes; the default that needs no
//! privilege.
//!
//! Holds: its settings and how it is opened. `socket` makes the sockets, `tx` and `rx` are the
//! halves, `targets` says where a frame to the group goes, `gso` gathers frames into batches,
//! `skew` says where in a page they begin, `sys` makes the system calls (the only `unsafe`).
//!
//! Invariants:
//! - Everything a node sends leaves from one socket, bound to one address and one port: that pair
//!   is the node's address, which others learn. A second socket receives the group.
//! - A frame to the group goes by multicast, and as a copy to each node that multicast does not
//!   reach. Who that is, the layer above finds by trying ([`Transmit::set_way`]).
//! - A node never receives its own group frames. Multicast is looped back only on loopback and
//!   where `same_host` asks for it (between hosts it halves the rate). A filter in the kernel then
//!   drops what this node has sent.
//! - Loss in a queueing discipline (`tc`) is loss in the network: the kernel does not tell of it.
//! - Segmentation offload (`UDP_SEGMENT`, `UDP_GRO`) is used where the kernel has it and given up
//!   by itself where an interface refuses it. Frames on the wire are the same.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::Link;
#[cfg(doc)]
use crate::Transmit;

mod gso;
mod rx;
mod skew;
mod socket;
mod sys;
mod targets;
mod tx;

/// Settings of the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// Multicast address and port that all nodes share.
    pub group: SocketAddr,
    /// Interface by name, such as `eth0` or `lo`. `None`: the one that has `local`, or else the one
    /// the route to the group leads through.
    pub iface: Option<String>,
    /// Own address. `None`: the first of the interface.
    pub local: Option<IpAddr>,
    /// Port at the own address, if it is free; `None`, or where it is not: any.
    pub listen: Option<u16>,
    /// Addresses where nodes may be that multicast does not reach: frames to [`To::All`] go there
    /// too, as long as no node is known at them.
    ///
    /// [`To::All`]: crate::To::All
    pub seeds: Vec<SocketAddr>,
    /// Largest IP packet in bytes. `None`: that of the interface, 9000 at most.
    pub mtu: Option<usize>,
    /// Receive buffer of each socket, in bytes; the send buffer is an eighth, since what waits
    /// there grows old. Without privilege the kernel grants no more than `net.core.rmem_max` and
    /// `net.core.wmem_max`.
    pub buffer_bytes: usize,
    /// Lets the kernel cut and join datagrams where it can.
    pub segmentation: bool,
    /// Other nodes of the group run on this host and use the same interface. (On loopback
    /// they always do.) It costs sending: every group frame comes back to this host.
    pub same_host: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            // 239/8 is for use inside an organisation (RFC 2365); D and W are 68 and 87.
            group: SocketAddr::from((Ipv4Addr::new(239, 68, 87, 1), 6887)),
            iface: None,
            local: None,
            listen: None,
            seeds: Vec::new(),
            mtu: None,
            buffer_bytes: 16 << 20,
            segmentation: true,
            same_host: false,
        }
    }
}

/// Why the transport could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The group is not a multicast address, or its port is 0.
    #[error(
        "{group} is not a multicast address with a port: take one like 239.68.87.1:6887 or [ff05::6887]:6887"
    )]
    NotMulticast {
        /// Address that was given.
        group: SocketAddr,
    },
    /// The interface does not exist or cannot be read.
    #[error(transparent)]
    Interface(#[from] crate::iface::FindError),
    /// No interface has this address.
    #[error("no network interface has the address {local}; there are: {existing}")]
    NoSuchAddress {
        /// Address that was given.
        local: IpAddr,
        /// The addresses that exist, with commas.
        existing: String,
    },
    /// Nothing says which interface to use.
    #[error(
        "no route leads to the group {group}: name an interface (`lo` for nodes on this host); there are: {existing}"
    )]
    NoRoute {
        /// Multicast address and port of the group.
        group: SocketAddr,
        /// The interfaces that exist, with commas.
        existing: String,
    },
    /// The interface has no address of the group's family.
    #[error(
        "network interface `{iface}` has no {family} address: give it one (`ip address add ... dev {iface}`)"
    )]
    NoAddress {
        /// Name of the interface.
        iface: String,
        /// IPv4 or IPv6.
        family: &'static str,
    },
    /// The interface is switched off.
    #[error("network interface `{iface}` is down: switch it on (`ip link set {iface} up`)")]
    Down {
        /// Name of the interface.
        iface: String,
    },
    /// The MTU does not fit the interface.
    #[error(
        "an MTU of {mtu} bytes does not fit network interface `{iface}`: it takes {least} to {most}"
    )]
    Mtu {
        /// MTU that was asked for, in bytes.
        mtu: usize,
        /// Name of the interface.
        iface: String,
        /// The smallest that makes sense.
        least: usize,
        /// What the interface carries.
        most: usize,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried, and on what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Opens both halves.
///
/// # Errors
/// [`UdpError`]: settings that cannot work here, or a system call that failed.
pub fn open(config: &UdpConfig) -> Result<Link, UdpError> {
    let sockets = socket::open(config)?;
    Ok(Link {
        tx: Box::new(tx::Tx::new(&sockets)),
        rx: Box::new(rx::Rx::new(sockets)),
    })
}
