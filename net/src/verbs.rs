//! The `verbs` transport: unreliable datagrams of InfiniBand or RoCE v2, with multicast.
//!
//! Holds: its settings and how it is opened. `device` finds the port, `queue` makes queue pairs,
//! `tx` and `rx` are the halves over their rings (`send_ring`, `recv_ring`), `subnet` joins groups
//! of InfiniBand, `ffi` is libibverbs, loaded at run time.
//!
//! Addresses are learnt as everywhere. The routing header of a datagram tells the sender's port.
//! Its immediate data is the number of the queue pair that receives there; the one that sends is
//! another. Keys are fixed by the session. Nothing is exchanged beforehand.
//!
//! Invariants:
//! - Slots are registered once; the adapter reads and writes them in place. Lent memory
//!   ([`Transmit::lend`]) is read by the adapter when it sends.
//! - A send that fails (the link is down) is counted, and the queue pair started again.
//! - Nothing spins: [`Receive::wait`] sleeps on the completion channel.
//!
//! No adapter counts, for one queue pair, the datagrams that found no slot. They show as gaps to
//! the layers above, and in the adapter's own counters (`hw_counters` in sysfs).

use std::io;
use std::net::Ipv4Addr;

use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

use crate::{Link, Receive, Source, Transmit};

mod device;
mod ffi;
mod queue;
mod recv_ring;
mod rx;
mod send_ring;
mod subnet;
mod tx;

pub use device::{Fabric, Port, ports, raise_locked_memory_limit};

use device::Address;
use ffi::{GRH_BYTES, Gid};
use queue::{Direction, Failed, Queue, REGISTER, Slots};
use recv_ring::ReceiveRing;
use rx::Rx;
use send_ring::SendRing;
use subnet::Group;
use tx::Tx;

/// Headers of a RoCE v2 datagram around its payload: IPv4 20, UDP 8, BTH 12, DETH 8, immediate data
/// 4, ICRC 4.
pub const ROCE_HEADERS_BYTES: usize = 56;
/// Smallest payload that makes sense: the smallest MTU there is.
const PAYLOAD_MIN: usize = 128;
/// Queue keys with this bit are reserved to the kernel.
const PRIVILEGED_KEY: u32 = 1 << 31;

/// Settings of the transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The port: an RDMA device (`rxe0`), device and port (`mlx5_0:1`), or a network interface that
    /// belongs to one (`eth0`). `None`: the only active one.
    pub port: Option<String>,
    /// Multicast group that all nodes share.
    pub group: Ipv4Addr,
    /// Key of all queue pairs: datagrams with another are refused by the adapter. The highest bit
    /// is not used.
    pub key: u32,
    /// MTU of the link in bytes (on Ethernet that of IP packets). Frames are as long as it and the
    /// port's active MTU allow. `None`: the latter.
    pub mtu: Option<usize>,
    /// Slots to send from; as many as the device allows at most.
    pub send_slots: usize,
    /// Memory to receive into, in bytes.
    pub receive_bytes: usize,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        VerbsConfig {
            port: None,
            group: Ipv4Addr::new(239, 68, 87, 1),
            key: 0x4457,
            mtu: None,
            send_slots: 1024,
            receive_bytes: 4 << 20,
        }
    }
}

/// Why the transport could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not installed, or too old.
    #[error(
        "verbs needs the library libibverbs.so.1 of rdma-core 33 or later and its drivers (Debian: apt-get install \
         libibverbs1 ibverbs-providers): {why}"
    )]
    NoLibrary {
        /// What the loader said.
        why: String,
    },
    /// This host has no RDMA device.
    #[error(
        "there is no RDMA device on this host (/sys/class/infiniband). Without an adapter there is Soft-RoCE: \
         `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevice,
    /// No port has this name.
    #[error(
        "there is no RDMA device, device:port or interface of one named `{name}`; there are: {existing}"
    )]
    NoSuchPort {
        /// The name asked for.
        name: String,
        /// What exists, with commas.
        existing: String,
    },
    /// More than one port could be used.
    #[error("several RDMA ports would do: name one; there are: {existing}")]
    Several {
        /// What exists, with commas.
        existing: String,
    },
    /// The port cannot send.
    #[error("{0}")]
    NotReady(String),
    /// The group is not a multicast address.
    #[error("{group} is not a multicast address (224.0.0.0/4)")]
    NotMulticast {
        /// The address given.
        group: Ipv4Addr,
    },
    /// The MTU leaves no space for a payload.
    #[error("an MTU of {mtu} bytes is too small for verbs on `{device}`: {least} at least")]
    Mtu {
        /// MTU that was asked for, in bytes.
        mtu: usize,
        /// Name of the device.
        device: String,
        /// Smallest MTU that works, in bytes.
        least: usize,
    },
    /// Memory could not be locked.
    #[error(
        "cannot register {bytes} bytes on `{device}` ({source}): raise the limit of locked memory (`ulimit -l`; \
         memlock in /etc/security/limits.conf, LimitMEMLOCK= of a service)"
    )]
    LockedMemory {
        /// Memory that was asked for, in bytes.
        bytes: usize,
        /// Name of the device.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another call failed.
    #[error("cannot {what} on `{device}`: {source}")]
    System {
        /// Call that failed, in words.
        what: &'static str,
        /// Name of the device.
        device: String,
        /// What the kernel or the driver said.
        source: io::Error,
    },
}

impl VerbsError {
    fn no_library(why: &str) -> Self {
        VerbsError::NoLibrary {
            why: why.to_owned(),
        }
    }
}

/// The port that would be opened for this name.
///
/// # Errors
/// [`VerbsError`]: no library, no device, no such port, or several.
pub fn find(name: Option<&str>) -> Result<Port, VerbsError> {
    device::choose(ports()?, name)
}

/// Opens both halves.
///
/// # Errors
/// [`VerbsError`]: no library or device, settings that cannot work here, or a call that failed.
pub fn open(config: &VerbsConfig) -> Result<Link, VerbsError> {
    if !config.group.is_multicast() {
        return Err(VerbsError::NotMulticast {
            group: config.group,
        });
    }
    let port = find(config.port.as_deref())?;
    let Some(address) = port.address else {
        return Err(VerbsError::NotReady(port.trouble().unwrap_or_default()));
    };
    let key = config.key & !PRIVILEGED_KEY;
    let opening = Opening {
        config,
        payload: payload(config, &port)?,
        group: group(config, &port, address, key)?,
        port: &port,
        address,
        key,
    };
    let (rx, number) = opening.receive()?;
    let tx = opening.transmit(number)?;
    log::info!(
        "verbs: {port}, address {} in group {}, {} bytes of payload",
        Source::Queue {
            gid: address.gid.0,
            lid: port.lid,
            qpn: number
        },
        config.group,
        opening.payload,
    );
    Ok(Link { tx, rx })
}

fn payload(config: &VerbsConfig, port: &Port) -> Result<usize, VerbsError> {
    let headers = match port.fabric {
        Fabric::Ethernet => ROCE_HEADERS_BYTES,
        Fabric::InfiniBand => 0,
    };
    let room = config
        .mtu
        .map_or(port.mtu, |mtu| mtu.saturating_sub(headers));
    if room < PAYLOAD_MIN {
        return Err(VerbsError::Mtu {
            mtu: config.mtu.unwrap_or_default(),
            device: port.device.clone(),
            least: PAYLOAD_MIN + headers,
        });
    }
    Ok(room.min(port.mtu))
}

fn group(
    config: &VerbsConfig,
    port: &Port,
    address: Address,
    key: u32,
) -> Result<Group, VerbsError> {
    match port.fabric {
        Fabric::Ethernet => Ok(Group {
            gid: Gid(config.group.to_ipv6_mapped().octets()),
            lid: 0,
        }),
        Fabric::InfiniBand => {
            subnet::join(port, address.gid, config.group, key).map_err(|source| {
                VerbsError::System {
                    what: "join a group of the subnet",
                    device: port.device.clone(),
                    source,
                }
            })
        }
    }
}

/// What both halves are made from.
struct Opening<'a> {
    config: &'a VerbsConfig,
    port: &'a Port,
    address: Address,
    payload: usize,
    group: Group,
    key: u32,
}

impl Opening<'_> {
    fn queue(&self, direction: Direction, slots: Slots) -> Result<Queue, VerbsError> {
        let device = &self.port.device;
        let library = ffi::library().map_err(VerbsError::no_library)?;
        let opened = device::open_all(library, Some(device));
        let (mut opened, mut refused) = self.tried("open", opened)?;
        let Some(context) = opened.pop() else {
            return Err(match refused.pop() {
                Some((_, source)) => self.failed("open", source),
                None => VerbsError::NoDevice,
            });
        };
        let slots = Slots {
            count: slots.count.clamp(1, self.port.queue.max(1)),
            ..slots
        };
        let made = Queue::open(context, self.port.number, self.key, direction, slots);
        made.map_err(|Failed { what, source }| match source.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM) if what == REGISTER => VerbsError::LockedMemory {
                bytes: slots.count * slots.bytes,
                device: device.clone(),
                source,
            },
            _ => self.failed(what, source),
        })
    }

    fn failed(&self, what: &'static str, source: io::Error) -> VerbsError {
        VerbsError::System {
            what,
            device: self.port.device.clone(),
            source,
        }
    }

    fn tried<T>(&self, what: &'static str, result: io::Result<T>) -> Result<T, VerbsError> {
        result.map_err(|source| self.failed(what, source))
    }

    fn receive(&self) -> Result<(Box<dyn Receive>, u32), VerbsError> {
        // As long as anything that the port may deliver; whole cache lines.
        let bytes = (GRH_BYTES + self.port.mtu).next_multiple_of(64);
        let slots = Slots {
            count: (self.config.receive_bytes / bytes).max(64),
            bytes,
        };
        let mut queue = self.queue(Direction::Receive, slots)?;
        let membership = match self.port.fabric {
            Fabric::Ethernet => Some(self.tried("join the group of the host", self.join_host())?),
            Fabric::InfiniBand => None,
        };
        let joined = queue.attach(self.group.gid, self.group.lid);
        self.tried("join the group", joined)?;
        let number = queue.number();
        let ring = self.tried("post receive slots", ReceiveRing::new(queue))?;
        let device = self.port.device.clone();
        let own = self.address.gid;
        let rx = Rx::new(ring, self.port.fabric, device, own, membership);
        Ok((Box::new(rx), number))
    }

    /// RoCE: the adapter (or Soft-RoCE) gets group packets only if the host is in the IP group too.
    fn join_host(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        let interface = InterfaceIndexOrAddress::Index(self.address.interface);
        socket.join_multicast_v4_n(&self.config.group, &interface)?;
        Ok(socket)
    }

    fn transmit(&self, answer_to: u32) -> Result<Box<dyn Transmit>, VerbsError> {
        let slots = Slots {
            count: self.config.send_slots.max(2),
            bytes: self.payload.next_multiple_of(64),
        };
        let mut queue = self.queue(Direction::Send, slots)?;
        let index = self.address.gid_index;
        let group = queue.handle(self.group.gid, self.group.lid, index);
        let group = self.tried("make a way to the group", group)?;
        let ring = SendRing::new(queue, self.key, answer_to);
        let device = self.port.device.clone();
        Ok(Box::new(Tx::new(ring, group, device, index, self.payload)))
    }
}
