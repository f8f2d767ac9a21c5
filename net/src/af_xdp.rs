//! The `af_xdp` transport: raw Ethernet through rings of frames that driver and program share.
//!
//! Holds: its settings and how it is opened. `socket` makes the sockets, `program` the XDP program
//! that steers our frames to them, `tx` and `rx` are the halves, `ring` is the shared memory and
//! `sys` the system calls (the only `unsafe`).
//!
//! One AF_XDP socket per queue. Both halves share the socket of the first queue, as the kernel
//! allows one UMEM per queue. Each half has chunks and rings of its own there. Zero copy where the
//! driver can, else the kernel copies; the program runs in the driver where it can, else in the
//! kernel. The sending half alone needs no program.
//!
//! Invariants:
//! - The payload is written and read in the UMEM: no copy in user space.
//! - Only frames of our EtherType leave the kernel's path; they are lent only if they are for the
//!   group or for this interface.
//! - Nothing stays on the interface when the receiving half is dropped or the process is killed.
//!
//! Known limits: one receiving half per interface (it takes all frames of the EtherType, also
//! those that another transport there waits for). A frame has to fit a page with the driver's own
//! needs: 3506 bytes of payload at most.

use std::io;

use crate::{Link, Receive, Transmit};

mod program;
mod ring;
mod rx;
mod socket;
mod sys;
mod tx;

/// Largest payload, in bytes: what native XDP on veth takes of a page of 4096, after its headroom
/// and the kernel's bookkeeping (`veth_xdp_set`). Other drivers take about as much.
pub const MTU_MAX: usize = 3506;

/// Settings of the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// Interface by name, such as `eth0`.
    pub iface: String,
    /// Ethernet multicast address that all nodes share.
    pub group: [u8; 6],
    /// EtherType of all frames.
    pub ether_type: u16,
    /// Largest payload behind the Ethernet header, in bytes, [`MTU_MAX`] at most. `None`: that of
    /// the interface.
    pub mtu: Option<usize>,
    /// Queues of the interface to receive from; the first is also sent to. `None`: all of them.
    pub queues: Option<Vec<u32>>,
    /// Frames for sending, at least. Few enough stay in the cache.
    pub tx_frames: usize,
    /// Frames handed to the kernel per system call.
    pub tx_batch_frames: usize,
    /// Frames for receiving, over all queues, at least.
    pub rx_frames: usize,
    /// Let the driver read and write the frames itself, where it can.
    pub zero_copy: bool,
    /// Run the program in the driver, where it can.
    pub driver_mode: bool,
}

impl Default for AfXdpConfig {
    fn default() -> Self {
        AfXdpConfig {
            iface: "eth0".to_owned(),
            // As in packet_mmap, with which the halves combine: local and multicast; D and W.
            group: [0x03, 0x44, 0x57, 0x00, 0x00, 0x01],
            // IEEE 802: local experimental EtherType 1.
            ether_type: 0x88B5,
            mtu: None,
            queues: None,
            tx_frames: 512,
            tx_batch_frames: 64,
            rx_frames: 4096,
            zero_copy: true,
            driver_mode: true,
        }
    }
}

/// Why the transport could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AfXdpError {
    /// The interface, the group or the MTU cannot be used.
    #[error(transparent)]
    Port(#[from] crate::PortError),
    /// The MTU is more than XDP can carry.
    #[error(
        "an MTU of {mtu} bytes on `{iface}` is too large for af_xdp, whose frames fit a page: {MTU_MAX} at most. \
         Ask for less, or lower it (`ip link set {iface} mtu {MTU_MAX}`), or take packet_mmap"
    )]
    Mtu {
        /// What was asked for, or what the interface has.
        mtu: usize,
        /// Name of the interface.
        iface: String,
    },
    /// This process may not.
    #[error(
        "cannot {what} on `{iface}`: not permitted. af_xdp needs the capability CAP_NET_RAW, and for receiving CAP_NET_ADMIN and CAP_BPF \
         of the machine (those of a user namespace are not enough): \
         `sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep {}`, or run as root, or take the udp transport, which needs nothing",
        crate::own::program()
    )]
    NoPrivilege {
        /// Call that failed, in words.
        what: &'static str,
        /// Name of the interface.
        iface: String,
    },
    /// More memory than the limit on locked memory allows.
    #[error(
        "the kernel may not lock {bytes} bytes of frames for `{iface}`: raise the limit (`ulimit -l unlimited`), or ask for fewer frames"
    )]
    LockedMemory {
        /// Memory that was asked for, in bytes.
        bytes: usize,
        /// Name of the interface.
        iface: String,
    },
    /// The kernel has no AF_XDP sockets.
    #[error(
        "this kernel has no AF_XDP (Linux 5.9 or later, built with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL): take packet_mmap"
    )]
    NoKernelSupport,
    /// The interface has no such queue.
    #[error(
        "network interface `{iface}` has no queue {queue} for {purpose}: it has {count}, counted from 0 (`ethtool -l {iface}`)"
    )]
    NoSuchQueue {
        /// Number of the queue that was asked for.
        queue: u32,
        /// `receiving` or `sending`.
        purpose: &'static str,
        /// Number of queues that the interface has.
        count: u32,
        /// Name of the interface.
        iface: String,
    },
    /// The settings name no queue.
    #[error("no queue of `{iface}` is named: name at least one, or leave the list out to take all")]
    NoQueue {
        /// Name of the interface.
        iface: String,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of `{iface}` belongs to another AF_XDP socket: end the program that holds it (`ss --xdp -p`)"
    )]
    QueueTaken {
        /// Number of the queue.
        queue: u32,
        /// Name of the interface.
        iface: String,
    },
    /// Another XDP program is on the interface.
    #[error(
        "`{iface}` has another XDP program (`ip link show {iface}`, `bpftool net`): end what put it there; one af_xdp receiver per interface"
    )]
    ProgramTaken {
        /// Name of the interface.
        iface: String,
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
/// [`AfXdpError`]: settings that cannot work here, no privilege, or a system call that failed.
pub fn open(config: &AfXdpConfig) -> Result<Link, AfXdpError> {
    let port = socket::choose(config)?;
    let (tx, rx) = socket::open_both(config, &port)?;
    Ok(Link {
        tx: Box::new(tx),
        rx: Box::new(rx),
    })
}

/// Opens the sending half alone, to be combined with the receiving half of another raw Ethernet
/// transport. Needs CAP_NET_RAW only.
///
/// # Errors
/// As [`open`].
pub fn open_transmit(config: &AfXdpConfig) -> Result<Box<dyn Transmit>, AfXdpError> {
    let port = socket::choose(config)?;
    Ok(Box::new(socket::open_transmit(config, &port)?))
}

/// Opens the receiving half alone.
///
/// # Errors
/// As [`open`].
pub fn open_receive(config: &AfXdpConfig) -> Result<Box<dyn Receive>, AfXdpError> {
    let port = socket::choose(config)?;
    Ok(Box::new(socket::open_receive(config, &port)?))
}
