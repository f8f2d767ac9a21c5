//! The `packet_mmap` transport: raw Ethernet through rings that are shared with the kernel.
//!
//! Holds: its settings and how it is opened. `socket` makes the sockets, `tx` and `rx` are the
//! halves, `ring` is the shared memory and `sys` the system calls (the only `unsafe`).
//!
//! Each half has a packet socket of its own: a `TPACKET_V2` transmit ring that bypasses the
//! queueing discipline, kicked once per batch, and a `TPACKET_V3` receive ring of blocks. Frames
//! have their own EtherType; a node is reached at its Ethernet address.
//!
//! Invariants:
//! - The payload is written and read in the ring: no copy in user space.
//! - Only frames for the group or for this interface are lent, whatever the network floods.
//! - A link that goes down is counted and logged once; frames wait in the ring until it is up
//!   again.
//!
//! Known limit of the kernel: a bridge or a capture that clones a frame of a transmit ring may
//! still read it after the ring has it back. Layers above check what they receive.

use std::io;

use crate::ethernet::Port;
use crate::{Link, Receive, Source, Transmit};

mod ring;
mod rx;
mod socket;
mod sys;
mod tx;

/// Settings of the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketMmapConfig {
    /// Interface by name, such as `eth0`.
    pub iface: String,
    /// Ethernet multicast address that all nodes share.
    pub group: [u8; 6],
    /// EtherType of all frames.
    pub ether_type: u16,
    /// Largest payload behind the Ethernet header, in bytes. `None`: that of the interface, 9000 at
    /// most.
    pub mtu: Option<usize>,
    /// Frames in the transmit ring, at least; 65,536 at most. `None`: what 1 MB holds, which stays
    /// in the cache.
    pub tx_frames: Option<usize>,
    /// Frames handed to the kernel per system call; half the ring at most.
    pub tx_batch_frames: usize,
    /// Size of the receive ring, bytes. The kernel fills it in turn, so that all of it passes
    /// through the cache: a longer one outlasts longer pauses of the receiver, and is slower.
    pub rx_ring_bytes: usize,
    /// The kernel hands over a block that is not full after this time, in milliseconds.
    pub retire_ms: u32,
}

impl Default for PacketMmapConfig {
    fn default() -> Self {
        PacketMmapConfig {
            iface: "eth0".to_owned(),
            // Local and multicast (the two low bits of the first byte); D and W are 44 and 57.
            group: [0x03, 0x44, 0x57, 0x00, 0x00, 0x01],
            // IEEE 802: local experimental EtherType 1.
            ether_type: 0x88B5,
            mtu: None,
            tx_frames: None,
            tx_batch_frames: 128,
            rx_ring_bytes: 8 << 20,
            retire_ms: 1,
        }
    }
}

/// Why the transport could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketMmapError {
    /// The interface, the group or the MTU cannot be used.
    #[error(transparent)]
    Port(#[from] crate::PortError),
    /// Raw sockets are not allowed.
    #[error(
        "raw Ethernet on `{iface}` needs the capability CAP_NET_RAW: `sudo setcap cap_net_raw+ep {}`, \
         or run as root, or take the udp transport, which needs nothing",
        crate::own::program()
    )]
    NoPrivilege {
        /// Name of the interface.
        iface: String,
    },
    /// The kernel has no memory for a ring.
    #[error(
        "the kernel refuses {bytes} bytes for the {which} ring on `{iface}` ({source}): ask for a smaller ring"
    )]
    RingMemory {
        /// `transmit` or `receive`.
        which: &'static str,
        /// Memory that was asked for, in bytes.
        bytes: usize,
        /// Name of the interface.
        iface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("cannot {what} on `{iface}`: {source}")]
    System {
        /// Call that failed, in words.
        what: &'static str,
        /// Name of the interface.
        iface: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Opens both halves.
///
/// # Errors
/// [`PacketMmapError`]: settings that cannot work here, no privilege, or a system call that failed.
pub fn open(config: &PacketMmapConfig) -> Result<Link, PacketMmapError> {
    Ok(Link {
        tx: open_transmit(config)?,
        rx: open_receive(config)?,
    })
}

/// Opens the sending half alone, to be combined with the receiving half of another raw Ethernet
/// transport.
///
/// # Errors
/// As [`open`].
pub fn open_transmit(config: &PacketMmapConfig) -> Result<Box<dyn Transmit>, PacketMmapError> {
    let port = socket::choose(config)?;
    log_opened(config, &port, "transmit");
    Ok(Box::new(socket::open_transmit(config, &port)?))
}

/// Opens the receiving half alone.
///
/// # Errors
/// As [`open`].
pub fn open_receive(config: &PacketMmapConfig) -> Result<Box<dyn Receive>, PacketMmapError> {
    let port = socket::choose(config)?;
    log_opened(config, &port, "receive");
    Ok(Box::new(socket::open_receive(config, &port)?))
}

fn log_opened(config: &PacketMmapConfig, port: &Port, half: &str) {
    log::info!(
        "packet_mmap {half}: {} in group {} on `{}`, EtherType {:#06x}, {} bytes of payload",
        Source::Mac(port.mac),
        Source::Mac(config.group),
        config.iface,
        config.ether_type,
        port.payload_max,
    );
}
