//! The sending half: fills chunks of the UMEM in place and wakes the kernel once per batch.
//!
//! Invariants:
//! - Frames leave in ring order. What was published and not taken waits in the ring for a later
//!   kick.
//! - Never blocks. A frame that had a slot is sent, waits, or is counted as `dropped`.

use std::io;
use std::sync::Arc;

use socket2::Socket;

use super::ring::TransmitRings;
use super::{AfXdpConfig, sys};
use crate::ethernet::{ETHERNET_HEADER, Heads, Port};
use crate::{Source, To, Transmit, TransmitStats};

/// Shortest frame on a wire, checksum left out. Drivers in zero copy mode do not pad.
const FRAME_MIN: usize = 60;

pub(super) struct Tx {
    socket: Arc<Socket>,
    rings: TransmitRings,
    /// The driver takes frames by itself; otherwise the kernel does in the system call.
    zero_copy: bool,
    iface: String,
    heads: Heads,
    batch_frames: usize,
    /// Frames put since the last kick.
    fresh: usize,
    down: bool,
    /// A lasting failure; `flush` returns it.
    fatal: Option<io::Error>,
    stats: TransmitStats,
}

impl Tx {
    pub(super) fn new(
        socket: Arc<Socket>,
        rings: TransmitRings,
        zero_copy: bool,
        config: &AfXdpConfig,
        port: &Port,
    ) -> Self {
        let (frames, bytes) = rings.size();
        Tx {
            socket,
            batch_frames: config.tx_batch_frames.clamp(1, frames),
            stats: TransmitStats {
                buffer_bytes: bytes as u64,
                ..TransmitStats::default()
            },
            rings,
            zero_copy,
            iface: config.iface.clone(),
            heads: Heads::new(port, config.group, config.ether_type),
            fresh: 0,
            down: false,
            fatal: None,
        }
    }

    /// Makes the kernel look at the ring until it has taken everything or stops.
    fn kick(&mut self) {
        self.fresh = 0;
        self.rings.publish();
        let mut waiting = self.rings.waiting();
        while waiting > 0 && self.rings.needs_wakeup() {
            self.stats.calls += 1;
            let go_on = match sys::kick(&self.socket) {
                Ok(()) => {
                    if self.down {
                        self.down = false;
                        log::info!("af_xdp: `{}` is up again", self.iface);
                    }
                    // With zero copy the driver goes on by itself from here.
                    !self.zero_copy
                }
                Err(error) => self.may_go_on(error),
            };
            let before = waiting;
            waiting = self.rings.waiting();
            if !go_on || waiting == before {
                break;
            }
        }
        self.rings.reap();
    }

    /// Takes note of why a kick has stopped; true if another one may get further.
    fn may_go_on(&mut self, error: io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return true,
            // The interface has thrown away the frame that was its turn (`xsk_generic_xmit`).
            Some(libc::EBUSY) if !self.zero_copy => {
                if self.stats.dropped == 0 {
                    log::warn!(
                        "af_xdp: `{}` drops frames: no carrier, or its receiver is full (counted; logged once)",
                        self.iface
                    );
                }
                self.stats.dropped += 1;
                return true;
            }
            Some(libc::EBUSY) => return true,
            Some(libc::ENETDOWN) => {
                self.stats.errors += 1;
                if !self.down {
                    self.down = true;
                    log::warn!(
                        "af_xdp: `{}` is down: frames wait until it is up again (logged once)",
                        self.iface
                    );
                }
            }
            Some(libc::ENXIO | libc::ENODEV | libc::EBADF | libc::ENOTSOCK) => {
                self.stats.errors += 1;
                self.fatal = Some(error);
            }
            _ => {
                if self.stats.errors == 0 {
                    log::warn!(
                        "af_xdp: the kernel refuses to send on `{}`: {error} (counted; logged once)",
                        self.iface
                    );
                }
                self.stats.errors += 1;
            }
        }
        false
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
        let end = ETHERNET_HEADER + len;
        let mut write = |slot: &mut [u8]| {
            slot[..ETHERNET_HEADER].copy_from_slice(&header);
            fill(&mut slot[ETHERNET_HEADER..end]);
            slot[end..].fill(0);
        };
        if !self.rings.has_free() {
            self.rings.reap();
            if !self.rings.has_free() {
                self.kick();
            }
        }
        if !self.rings.put(end.max(FRAME_MIN), &mut write) {
            self.stats.no_slot += 1;
            return false;
        }
        self.fresh += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
        if self.fresh >= self.batch_frames {
            self.kick();
        }
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.kick();
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
