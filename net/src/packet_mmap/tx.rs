//! The sending half: fills frames of the ring in place and kicks the kernel once per batch.
//!
//! Invariants:
//! - The kernel takes frames in ring order. `waiting` frames from `oldest` on were given to it and
//!   not seen taken; nothing but a later kick can move them.
//! - Never blocks. A frame that had a slot is sent, waits, or is counted as `dropped`.

use std::io;

use libc::sockaddr_ll;
use socket2::Socket;

use super::ring::{FrameState, TransmitRing};
use super::{PacketMmapConfig, sys};
use crate::ethernet::{ETHERNET_HEADER, Heads, Port};
use crate::{Source, To, Transmit, TransmitStats};

pub(super) struct Tx {
    socket: Socket,
    ring: TransmitRing,
    address: sockaddr_ll,
    iface: String,
    heads: Heads,
    batch_frames: usize,
    /// The frame to fill next.
    head: usize,
    oldest: usize,
    waiting: usize,
    /// Frames filled since the last kick.
    fresh: usize,
    down: bool,
    /// A lasting failure; `flush` returns it.
    fatal: Option<io::Error>,
    stats: TransmitStats,
}

impl Tx {
    pub(super) fn new(
        socket: Socket,
        ring: TransmitRing,
        config: &PacketMmapConfig,
        port: &Port,
        ring_bytes: usize,
    ) -> Self {
        Tx {
            socket,
            // While the kernel sends one half, the other is filled.
            batch_frames: config.tx_batch_frames.clamp(1, ring.frames().div_ceil(2)),
            ring,
            address: sys::address(port.index, config.ether_type),
            iface: config.iface.clone(),
            heads: Heads::new(port, config.group, config.ether_type),
            head: 0,
            oldest: 0,
            waiting: 0,
            fresh: 0,
            down: false,
            fatal: None,
            stats: TransmitStats {
                buffer_bytes: ring_bytes as u64,
                ..TransmitStats::default()
            },
        }
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 == self.ring.frames() {
            0
        } else {
            index + 1
        }
    }

    /// Counts off the frames that the kernel has taken.
    fn settle(&mut self) {
        while self.waiting > 0 {
            match self.ring.state(self.oldest) {
                FrameState::Waiting | FrameState::Refused => return,
                // A frame that is being sent needs no further kick. Its memory is still the
                // kernel's: `send` looks at the state of the frame that it is about to fill.
                FrameState::Free | FrameState::Sending => {
                    self.oldest = self.after(self.oldest);
                    self.waiting -= 1;
                }
            }
        }
    }

    /// Makes the kernel look at the ring.
    fn kick(&mut self) {
        self.fresh = 0;
        self.stats.calls += 1;
        let Err(error) = sys::kick(&self.socket, &self.address) else {
            if self.down {
                self.down = false;
                log::info!("packet_mmap: `{}` is up again", self.iface);
            }
            return;
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {}
            Some(libc::ENXIO | libc::ENODEV | libc::EBADF | libc::ENOTSOCK) => {
                self.stats.errors += 1;
                self.fatal = Some(error);
            }
            Some(libc::ENETDOWN) => {
                self.stats.errors += 1;
                if !self.down {
                    self.down = true;
                    log::warn!(
                        "packet_mmap: `{}` is down: frames wait until it is up again (logged once)",
                        self.iface
                    );
                }
            }
            _ => {
                self.stats.errors += 1;
                self.replace_refused(&error);
            }
        }
    }

    /// The kernel has stopped at a frame that it will not send (the MTU of the interface was
    /// lowered). It goes on only when a frame that it accepts is in that place: an empty one,
    /// addressed to this node, which no receiver gets.
    fn replace_refused(&mut self, error: &io::Error) {
        self.settle();
        if self.waiting == 0 || self.ring.state(self.oldest) != FrameState::Refused {
            return;
        }
        if self.stats.dropped == 0 {
            log::warn!(
                "packet_mmap: the kernel refuses frames on `{}`: {error} (counted; logged once)",
                self.iface
            );
        }
        self.stats.dropped += 1;
        let header = self.heads.to(self.heads.mac);
        self.ring.put(self.oldest, ETHERNET_HEADER, &mut |slot| {
            slot.copy_from_slice(&header);
        });
        self.fresh += 1;
    }
}

impl Transmit for Tx {
    fn mtu(&self) -> usize {
        self.heads.mtu
    }

    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(header) = self.heads.of(to, len, &mut self.stats) else {
            return false;
        };
        let mut write = |slot: &mut [u8]| {
            slot[..ETHERNET_HEADER].copy_from_slice(&header);
            fill(&mut slot[ETHERNET_HEADER..]);
        };
        if self.ring.state(self.head) != FrameState::Free {
            self.settle();
            if self.waiting > 0 {
                self.kick();
            }
        }
        let free = self.ring.state(self.head) == FrameState::Free;
        if !free || !self.ring.put(self.head, ETHERNET_HEADER + len, &mut write) {
            self.stats.no_slot += 1;
            return false;
        }
        if self.waiting == 0 {
            self.oldest = self.head;
        }
        self.head = self.after(self.head);
        self.waiting += 1;
        self.fresh += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        if self.fresh >= self.batch_frames {
            self.kick();
            self.settle();
        }
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.settle();
        if self.waiting > 0 {
            self.kick();
        }
        self.fatal.take().map_or(Ok(()), Err)
    }

    fn learn(&mut self, node: u16, source: Source) {
        self.heads.learn(node, source);
    }

    fn knows(&self, node: u16) -> bool {
        self.heads.knows(node)
    }

    fn stats(&self) -> TransmitStats {
        self.stats
    }
}
