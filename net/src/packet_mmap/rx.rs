//! The receiving half: lends frames out of the blocks that the kernel has filled.
//!
//! Invariants: never blocks in `recv`; a frame is lent in the ring. A block goes back to the kernel
//! as soon as its last frame was read.

use std::io;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::ring::ReceiveRing;
use super::{PacketMmapConfig, sys};
use crate::ethernet::{Filter, Port, Verdict};
use crate::syscalls::{poll, readable};
use crate::{Receive, ReceiveStats, Source};

pub(super) struct Rx {
    socket: Socket,
    ring: ReceiveRing,
    iface: String,
    filter: Filter,
    down: bool,
    stats: ReceiveStats,
}

impl Rx {
    pub(super) fn new(
        socket: Socket,
        ring: ReceiveRing,
        config: &PacketMmapConfig,
        port: &Port,
        ring_bytes: usize,
    ) -> Self {
        Rx {
            socket,
            ring,
            iface: config.iface.clone(),
            filter: Filter {
                group: config.group,
                mac: port.mac,
            },
            down: false,
            stats: ReceiveStats {
                buffer_bytes: ring_bytes as u64,
                ..ReceiveStats::default()
            },
        }
    }

    /// Takes the error that woke a sleeper; it would wake the next one too.
    fn take_error(&mut self) -> io::Result<()> {
        let Some(error) = self.socket.take_error()? else {
            return Ok(());
        };
        self.stats.errors += 1;
        if !sys::has_interface(&self.socket) {
            return Err(error);
        }
        if !self.down {
            self.down = true;
            log::warn!(
                "packet_mmap: nothing is received on `{}` for now: {error} (logged once)",
                self.iface
            );
        }
        Ok(())
    }
}

impl Receive for Rx {
    fn recv(&mut self, max: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
        let mut count = 0;
        while count < max
            && let Some(frame) = self.ring.next()
        {
            let (from, payload) = match self.filter.judge(frame.bytes) {
                Verdict::Ours(from, payload) => (from, payload),
                Verdict::NotOurs => {
                    self.stats.not_ours += 1;
                    continue;
                }
                Verdict::Truncated => {
                    self.stats.truncated += 1;
                    continue;
                }
            };
            if frame.truncated {
                self.stats.truncated += 1;
                continue;
            }
            count += 1;
            self.stats.frames += 1;
            self.stats.bytes += payload.len() as u64;
            each(Source::Mac(from), payload);
        }
        self.ring.settle();
        self.down &= count == 0;
        Ok(count)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            if self.ring.is_ready() {
                return Ok(true);
            }
            let left = timeout.saturating_sub(start.elapsed());
            self.stats.calls += 1;
            let (readable, failed) = poll(&mut [readable(&self.socket)], left)?;
            if readable && self.ring.is_ready() {
                return Ok(true);
            }
            if failed {
                self.take_error()?;
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
        }
    }

    fn stats(&mut self) -> ReceiveStats {
        if let Ok(since) = sys::statistics(&self.socket) {
            self.stats.kernel_drops += u64::from(since.tp_drops);
        }
        self.stats
    }
}
