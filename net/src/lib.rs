//! Frames in and out: the transports of dogwild, behind two traits.
//!
//! ```
//! use dogwild_net::memory::Hub;
//! use dogwild_net::{Link, To};
//!
//! // Two nodes in one process; `udp::open` and its siblings return such a link for a network.
//! let [mut a, mut b]: [Link; 2] = Hub::new(2, 1472, 16).try_into().expect("two links");
//! assert!(a.tx.send(To::Group, 5, &mut |slot| slot.copy_from_slice(b"hello")));
//! a.tx.flush()?;
//!
//! let mut from = None;
//! b.rx.recv(8, &mut |source, frame| {
//!     assert_eq!(frame, b"hello");
//!     from = Some(source);
//! })?;
//! // Addresses are learnt from the frames that come in: now node 0 can be answered.
//! b.tx.learn(0, from.expect("a frame"));
//! assert!(b.tx.send(To::Node(0), 2, &mut |slot| slot.copy_from_slice(b"hi")));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A [`Link`] is a pair of halves, [`Transmit`] and [`Receive`]. The transports are siblings that
//! never import each other:
//!
//! - [`memory`]: rings in one process;
//! - [`udp`]: multicast and unicast, with segmentation offload;
//! - [`packet_mmap`]: raw Ethernet through kernel rings;
//! - [`af_xdp`]: raw Ethernet through rings shared with the driver; its halves combine with those
//!   of packet_mmap;
//! - [`verbs`]: datagrams of InfiniBand and RoCE.
//!
//! Wrappers go around any of them: [`capture`] (writes frames to a file that Wireshark opens),
//! [`fault`] (loses, corrupts, repeats, swaps and delays frames from a seed), [`seal`]
//! (authentication), [`pace`] (keeps a rate with a token [`bucket`]). [`iface`] lists the network
//! interfaces of this host.
//!
//! Wrappers are put on in this order, the first next to the wire: `capture`, `fault`, `seal`,
//! `pace`. So a capture holds what was on the wire, and a seal meets what the fault did to it.
//!
//! May touch: sockets and interfaces. Knows nothing of weights, chunks or what a frame says, and
//! never imports `dogwild`.
//!
//! Invariants:
//! - A network promises nothing: a frame may vanish, come twice, come late. A transport adds no
//!   loss of its own that it does not count, never blocks in `send`, `flush` or `recv`, and makes
//!   no copy, allocation or system call per frame.
//! - Addresses are learnt. Only the group is configured; a node is reached at the [`Source`] of the
//!   last frame that the layer above found valid (it calls [`Transmit::learn`]).
//! - `unsafe` is open only in the files that a test of the workspace lists: those that make system
//!   calls, call libibverbs, share a ring with the kernel or an adapter, or use vector
//!   instructions.
//!
//! [`udp`], [`packet_mmap`], [`af_xdp`] and [`verbs`] exist on Linux, whose system calls they are
//! made of; [`memory`] and the wrappers everywhere.
//!
//! The features `capture` and `verbs`, both on by default, are the modules of those names.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

mod address_table;
#[cfg(target_os = "linux")]
pub mod af_xdp;
pub mod bucket;
#[cfg(feature = "capture")]
pub mod capture;
#[cfg(target_os = "linux")]
mod ethernet;
pub mod fault;
#[cfg(target_os = "linux")]
pub mod iface;
pub mod memory;
pub mod outbox;
pub mod own;
pub mod pace;
#[cfg(target_os = "linux")]
pub mod packet_mmap;
pub mod seal;
#[cfg(target_os = "linux")]
mod syscalls;
#[cfg(target_os = "linux")]
pub mod udp;
#[cfg(all(target_os = "linux", feature = "verbs"))]
pub mod verbs;

#[cfg(target_os = "linux")]
pub use ethernet::PortError;
pub use outbox::{FillLent, Room, To, Way};

/// Where a frame came from, as the transport sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The Ethernet address of the sender.
    Mac([u8; 6]),
    /// The IP address and port of the sender.
    Socket(SocketAddr),
    /// The same, of a frame that came by multicast (`udp`).
    Multicast(SocketAddr),
    /// The place of the sender in a [`memory::Hub`].
    Memory(u16),
    /// The queue pair that answers go to, and the port it is on (`verbs`).
    Queue {
        /// Global identifier of the port.
        gid: [u8; 16],
        /// Its local identifier (InfiniBand; 0 on Ethernet).
        lid: u16,
        /// Number of the queue pair.
        qpn: u32,
    },
}

impl Source {
    /// The address to answer to: of a frame that came by multicast that of its sender.
    #[must_use]
    pub fn sender(self) -> Self {
        match self {
            Source::Multicast(at) => Source::Socket(at),
            source => source,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Mac([a, b, c, d, e, g]) => {
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            Source::Socket(at) | Source::Multicast(at) => write!(f, "{at}"),
            Source::Memory(at) => write!(f, "memory {at}"),
            Source::Queue { gid, lid, qpn } => {
                write!(f, "{} queue pair {qpn}", Ipv6Addr::from(*gid))?;
                if *lid == 0 {
                    Ok(())
                } else {
                    write!(f, " lid {lid}")
                }
            }
        }
    }
}

/// The sending half of a transport. A half may live on a thread of its own.
///
/// Call order: `send` as often as there is something to send, `flush` when there is not (or when it
/// has to leave now), `learn` whenever a valid frame tells where a node is.
pub trait Transmit: Send {
    /// The largest payload of one frame, in bytes.
    fn mtu(&self) -> usize;

    /// Takes a free slot and lets `fill` write the payload of `len` bytes into it, in place.
    ///
    /// True: `fill` was called once, with a slice of exactly `len` bytes that holds old content, so
    /// it has to write every byte. The frame may leave at once or wait for [`flush`](Self::flush).
    ///
    /// False: nothing was done and `fill` was not called. No slot is free now, or `to` has no known
    /// address yet, or `len` is more than [`mtu`](Self::mtu). Each is counted in its own field of
    /// [`TransmitStats`].
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Hands everything sent so far to the kernel. Never blocks: what the kernel will not take now
    /// stays in its slot and goes with a later `send` or `flush`.
    ///
    /// # Errors
    /// Only lasting failures (the interface is gone). A link that is down is counted.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands over what was sent before the last call of this. For a loop that has more to send all
    /// the time: full batches cost less per frame, and yet no frame waits for long. The default
    /// hands over everything.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn flush_old(&mut self) -> io::Result<()> {
        self.flush()
    }

    /// Frames to `To::Node(node)` go to `source` from now on. Cheap when that is known already. A
    /// source of another transport is ignored.
    fn learn(&mut self, node: u16, source: Source);

    /// How frames to the group reach `node` from now on, where the transport can send copies
    /// (`udp`); else nothing changes.
    fn set_way(&mut self, node: u16, way: Way) {
        let _ = (node, way);
    }

    /// Frames to `To::Node(node)` have no address any more, and no copies go there.
    fn forget(&mut self, node: u16) {
        let _ = node;
    }

    /// Datagrams that a frame to `to` is at present.
    fn copies(&self, to: To) -> usize {
        let _ = to;
        1
    }

    /// How long until a frame of [`mtu`](Self::mtu) bytes may go, as far as a [`pace`] wrapper
    /// limits it. Zero: now, or there is no such wrapper. A loop sleeps that long when `send`
    /// refuses.
    fn ready_in(&self) -> Duration {
        Duration::ZERO
    }

    /// How many frames of [`mtu`](Self::mtu) bytes a [`pace`] wrapper lets go; `None`: there is no
    /// such wrapper.
    fn room(&self) -> Option<Room> {
        None
    }

    /// Whether an address of this node is known.
    fn knows(&self, node: u16) -> bool;

    /// What was sent and what was not, since the link was opened.
    fn stats(&self) -> TransmitStats;

    /// Lends memory to the adapter, once: [`send_lent`](Self::send_lent) may then send from where
    /// it is. True: taken. False (the default): this transport copies, and nothing is changed.
    ///
    /// The words may change at any time, also while they are sent. They stay pinned until this half
    /// is dropped.
    ///
    /// # Errors
    /// The adapter would take it, but the host does not allow it (locked memory).
    fn lend(&mut self, words: &[AtomicU32]) -> io::Result<bool> {
        let _ = words;
        Ok(false)
    }

    /// As [`send`](Self::send), of a frame of `head_len` bytes and, behind them, `words` of the
    /// lent memory (a range of 32-bit words). `fill` is given the head, and the tail too where it
    /// has to be copied: always by default, and where no such words were lent.
    ///
    /// Some: `fill` was called once; the ticket is for [`has_read`](Self::has_read). None: as false
    /// of `send`.
    fn send_lent(
        &mut self,
        to: To,
        head_len: usize,
        words: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        let len = head_len.saturating_add(words.len().saturating_mul(4));
        let went = self.send(to, len, &mut |slot| {
            let (head, tail) = slot.split_at_mut(head_len);
            fill(head, Some(tail));
        });
        went.then_some(0)
    }

    /// Whether the adapter has read all lent words of the frame with this ticket: what is stored
    /// into them from now on is not part of that frame. Never blocks.
    fn has_read(&mut self, ticket: u64) -> bool {
        let _ = ticket;
        true
    }
}

/// The receiving half of a transport.
pub trait Receive: Send {
    /// Lends up to `max` received frames to `each`, without a copy, and returns how many it lent.
    /// Never blocks; 0 means that there is nothing now. A frame may be longer than what was sent
    /// (short Ethernet frames are padded), never shorter.
    ///
    /// # Errors
    /// Only lasting failures.
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize>;

    /// Sleeps until something can be received (true) or until `timeout` has passed (false).
    ///
    /// # Errors
    /// Only lasting failures.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;

    /// What was received and what was lost, since the link was opened.
    fn stats(&mut self) -> ReceiveStats;
}

/// Both halves of a transport, as one node holds them.
pub struct Link {
    /// Half that sends.
    pub tx: Box<dyn Transmit>,
    /// Half that receives.
    pub rx: Box<dyn Receive>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("mtu", &self.tx.mtu())
            .finish_non_exhaustive()
    }
}

/// What a [`Transmit`] did. Every `send` counts in exactly one of `frames`, `no_slot`,
/// `no_address`, `too_long` and `paced`; a frame that goes as several copies counts as so many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransmitStats {
    /// Frames that got a slot.
    pub frames: u64,
    /// Payload of those frames.
    pub bytes: u64,
    /// Sends refused because no slot was free.
    pub no_slot: u64,
    /// Sends refused because the node's address was not known.
    pub no_address: u64,
    /// Sends refused because the payload was longer than the MTU.
    pub too_long: u64,
    /// Sends refused because a [`pace`] wrapper had no tokens left; zero without one.
    pub paced: u64,
    /// Frames that had a slot and that the kernel of this host refused for good. They are part of
    /// `frames`.
    pub dropped: u64,
    /// System calls that failed for another reason than "not now".
    pub errors: u64,
    /// System calls made to hand frames to the kernel.
    pub calls: u64,
    /// Send buffer that the kernel granted, or the size of the ring.
    pub buffer_bytes: u64,
}

/// What a [`Receive`] saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveStats {
    /// Frames lent to the caller.
    pub frames: u64,
    /// Payload of those frames.
    pub bytes: u64,
    /// Dropped by the kernel (or the hub) because the buffer of this receiver was full. The kernel
    /// counts what it queues: with segmentation offload one drop may be many frames.
    pub kernel_drops: u64,
    /// Those of them that were dropped because the rx ring was full (`af_xdp`).
    pub rx_ring_full: u64,
    /// How often the kernel found no chunk in the fill ring to receive into (`af_xdp`); with copy
    /// each is one of `kernel_drops`.
    pub fill_ring_empty: u64,
    /// Frames that arrived cut off; they are not lent.
    pub truncated: u64,
    /// Frames for another node, or our own come back; they are not lent.
    pub not_ours: u64,
    /// System calls that failed for another reason than "nothing now", link down included.
    pub errors: u64,
    /// System calls made to get frames.
    pub calls: u64,
    /// Receive buffer that the kernel granted, or the size of the ring.
    pub buffer_bytes: u64,
    /// What a [`fault`] wrapper did to the frames on their way; zero without one.
    pub fault: fault::FaultStats,
    /// What a [`seal`] wrapper refused; zero without one.
    pub seal: seal::SealStats,
    /// Where the last frame came from that it refused for its tag or its length.
    pub seal_refused_from: Option<Source>,
    /// What a [`capture`] wrapper wrote, both directions; zero without one.
    pub capture: CaptureStats,
}

/// What became of the frames of a [`capture`], both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames written to the file.
    pub written: u64,
    /// Frames that were not, because the file was full or failed.
    pub skipped: u64,
}
